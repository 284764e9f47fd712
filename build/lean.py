"""The yardstick of the benchmark: a onefile program that does nothing but import what any plugin would and answer."""

import errno
import json
import os
import select
import socket
import struct
import sys
import time

USED = (errno, os, select, socket, struct, time)

if __name__ == "__main__":
    sys.stdout.write(json.dumps({"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}) + "\n")

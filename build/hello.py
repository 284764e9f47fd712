"""The other yardstick: what a onefile program costs before its first import."""

print('{"cniVersion": "1.1.0"}')

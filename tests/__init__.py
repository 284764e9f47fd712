"""The tests of one machine: no server, no runtime, no peer; those are in conformance/."""

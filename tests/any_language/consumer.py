"""A consumer without an inbox, by what the book says alone: "Repeats without an inbox".

It reads streams of Redis, twice over for the first half of each, as if it had been restarted in between, and prints what it handles.

    consumer.py PORT STREAM...
"""

import json
import socket
import sys


class Redis:
    """As much of the protocol as a consumer needs."""

    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def ask(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.file.write(b"*%d\r\n" % len(words))
        for word in words:
            self.file.write(b"$%d\r\n%s\r\n" % (len(word), word))
        self.file.flush()
        return self.answer()

    def answer(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind in b"+:":
            return rest
        if rest == b"-1":
            return None
        if kind == b"$":
            return self.file.read(int(rest) + 2)[:-2]
        return [self.answer() for _ in range(int(rest))]


class Consumer:
    def __init__(self):
        self.last = {}  # (source, topic, key) -> sequence
        self.known = set()  # (topic, id)

    def is_repeat(self, message):
        topic, key = message["topic"], message.get("partitionkey")
        if key is None:
            known = (topic, message["id"])
            if known in self.known:
                return True
            self.known.add(known)
            return False
        ordered = (message["source"], topic, key)
        sequence = int(message["sequence"])
        if sequence <= self.last.get(ordered, 0):
            return True
        self.last[ordered] = sequence
        return False

    def take(self, entry):
        fields = entry[1]
        names = [name.decode() for name in fields[::2]]
        message = {
            name[3:]: value.decode() for name, value in zip(names, fields[1::2]) if name.startswith("ce-")
        }
        if not self.is_repeat(message):
            print(json.dumps([message["topic"], message.get("partitionkey"), message["id"]]))


def main():
    redis, consumer = Redis(int(sys.argv[1])), Consumer()
    entries = 0
    for stream in sys.argv[2:]:
        found = redis.ask("XRANGE", stream, "-", "+")
        entries += len(found)
        for entry in found[: len(found) // 2] + found:
            consumer.take(entry)
    print(json.dumps(entries))


main()

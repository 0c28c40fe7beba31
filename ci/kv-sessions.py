#!/usr/bin/env python3
"""Compares the replies of two memcached servers: ci/kv-sessions.py PORT PORT [SESSIONS [SEED]].

Both servers must be newly started. Each session sends the same bytes, valid commands and others, to
both servers; except for the version, the replies must be identical.
"""
import random
import re
import socket
import sys
from threading import Thread

LONG = b'k' * 251
EXPTIMES = [b'0'] * 8 + [b'100', b'2592000', b'2592001', b'-1', b'2147483647', b'4294967296', b'99999999999']
BAD_NUMBERS = [b'', b'x', b'-1', b'1x', b'0x10', b'+7', b'007', b'18446744073709551616', b'99999999999999999999',
               b'9223372036854775808', b'-9223372036854775808', b'-9223372036854775809', b'4294967296', b'\t5',
               b'5\t', b'-18446744073709551615', b'2147483646', b'-', b'noreply', b'1.5']
# As times none of these is of a few seconds, since a value must not expire between the same session with both.
BAD_EXPTIMES = [{b'+7': b'+700', b'007': b'00700', b'\t5': b'\t500', b'5\t': b'500\t'}.get(n, n) for n in BAD_NUMBERS]
# None has a minus: after a number above 2^63 memcached searches for one beyond the end of the value.
VALUES = [b'', b'0', b'7', b'99', b'100', b' 5', b'5 apples', b'18446744073709551615', b'18446744073709551616',
          b'000000000000000000000000000009', b'abc', b'\r\nx', b'END\r\n', b'\0', b'1\x002', b'12\t', b'+4']
LINES = [b'', b' ', b'a', b'bogus', b'get', b'gets', b'gat', b'gats', b'gat 0', b'gat x', b'gat x a', b'set', b'set a',
         b'set a 0 0', b'set a 0 0 1 2 3', b'cas a 0 0 1', b'cas a 0 0 1 2 3 4', b'incr', b'incr a', b'incr a 1 2 3', b'touch',
         b'touch a', b'touch a 0 1 2', b'delete', b'delete a 0', b'delete a 1', b'delete a 0 noreply', b'delete a 1 noreply',
         b'delete a b c', b'delete a b c d', b'delete noreply', b'delete a noreply 0', b'flush_all x', b'flush_all 1 2 3',
         b'flush_all x noreply', b'verbosity', b'verbosity 0', b'verbosity x', b'verbosity noreply', b'verbosity 0 noreply',
         b'verbosity 0 0 0', b'verbosity -1', b'version', b'version x', b'stats bogus', b'stats reset', b'stats cachedump',
         b'stats cachedump 0', b'stats cachedump 0 1', b'stats cachedump 63 10 x', b'stats cachedump 64 1', b'stats cachedump x 1',
         b'stats cachedump 0 -1', b'stats cachedump 0 1x', b'stats detail', b'stats detail on', b'stats detail off x', b'stats detail x',
         b'shutdown', b'slabs', b'lru', b'GET a', b'SET a 0 0 1', b'mset', b'sx HTTP/1.1', b'get x HTTP/1.1', b'\x80\x01\x02', b'\x81 a', b'get a\0b',
         b'get a \0 b', b'version\0x', b'bget a', b'getx a', b'get a\tb', b'x\ry', b'\rversion', b'decr a 1 noreply x',
         b'delete ' + LONG, b'delete ' + LONG + b' noreply', b'incr ' + LONG + b' 1',
         b'touch ' + LONG + b' 0', b'set ' + LONG + b' 0 0 5', b'append ' + LONG + b' 0 0 5 noreply', b'x' * 2000,
         b' ' * 90 + b'version', b'set a 0 0 2147483646', b'verbose', b'incr noreply noreply', b'get ' + b'a ' * 100]
# Longer than the 2,048 bytes within which a line must end, unless it arrives whole: so it is sent alone, and fits into a
# receive buffer of 4 KiB.
LONGER = b'k' * 3000
LONG_LINES = [LONGER, b' ' * 3000, b' ' * 3000 + b'version', b'version\0' + LONGER, b'version' + b' a' * 1200, b'set ' + LONGER + b' 0 0 5',
              b'append ' + LONGER + b' 0 0 5 noreply', b'set' + b' a' * 1200, b'delete ' + LONGER, b'delete' + b' a' * 1200,
              b'incr ' + LONGER + b' 1', b'incr a ' + b'0' * 3000 + b'7', b'touch ' + LONGER + b' 0', b'get ' + LONGER,
              b'get' + b' b' * 1400, b'gat 0' + b' b' * 1200 + b' ' + LONG, b' ' * 101 + b'get' + b' b' * 1200, b'gat x' + b' b' * 1200,
              b'flush_all ' + LONGER, b'verbosity ' + LONGER, b'stats ' + LONGER, b'xx' + b' b' * 1200 + b' HTTP/1.1']
CLOSING = [b'quit\r\n', b'quit x\r\nversion\r\n', b'GET / HTTP/1.1\r\n', b'POST / HTTP/1.0\r\n\r\n', b'xx HTTP/\r\n', b'x' * 2049,
           b' ' * 3000, b'set ' + b'y' * 4000]


class Session:
    def __init__(self, random, number):
        self.random, self.number = random, number
        # Whether each request waits for the reply to the previous one.
        self.in_step = number % 3 == 0
        # Whether a number may be in an unsent reply: memcached changes a number in place only if it is not.
        self.number_requested = False

    def key(self):
        n = self.random.randrange(8)
        return b'key%d' % n + b'p' * [0, 0, 0, 100, 246, 0, 30, 0][n]

    def number_word(self, good, bad=BAD_NUMBERS):
        return self.random.choice(bad) if self.random.random() < 0.06 else good

    def exptime(self):
        return self.number_word(self.random.choice(EXPTIMES), BAD_EXPTIMES)

    def noreply(self):
        r = self.random.random()
        return b' noreply' if r < 0.2 else b' what' if r < 0.22 else b''

    def end(self):
        return b'\n' if self.random.random() < 0.05 else b'\r\n'

    def value(self):
        r = self.random.random()
        if r < 0.5:
            return self.random.choice(VALUES)
        if r < 0.97:
            n = self.random.choice([3, 20, 75, 80, 130, 500, 1000, 5000])
        elif r < 0.999:
            n = self.random.choice([8000, 20_000, 70_000])
        else:
            n = self.random.choice([200_000, 1_048_000, 1_048_510, 1_048_576, 1_200_000])
        return bytes([self.random.randrange(97, 123)]) * n

    def store(self):
        name = self.random.choice([b'set', b'set', b'set', b'add', b'replace', b'append', b'prepend', b'cas'])
        words = [self.random.choice([b'0', b'5', b'4294967295']), self.random.choice(EXPTIMES), b'size']
        if name == b'cas':
            words.append(b'%d' % self.random.randrange(1, 3 * self.number + 10))
        fields = [self.number_word(word, BAD_EXPTIMES if i == 1 else BAD_NUMBERS) for i, word in enumerate(words)]
        # A value that is parsed as a line has to arrive whole, or not to exceed the maximum line length.
        value = self.value() if fields == words else self.value()[:3000 if self.in_step else 1000]
        if fields[2] == b'size' or self.in_step:
            fields[2] = b'%d' % len(value)
        line = b' '.join([name, self.key()] + fields) + self.noreply() + self.end()
        if not self.in_step:
            if self.random.random() < 0.03:
                value += self.random.choice([b'x', b'too much', b'\n'])
            elif self.random.random() < 0.02:
                value = value[:-1] + b'\r\n'
            if fields[2] != b'%d' % len(value):
                # Completes the expected value, so that the next command is parsed as a command.
                value += b'\r\n' * 6
        return line + value + b'\r\n'

    def command(self):
        r = self.random.random()
        if r < 0.35:
            return self.store()
        if r < 0.75 and r >= 0.65 and self.number_requested and not self.in_step:
            r = 0.5
        if r < 0.65:
            self.number_requested = True
            keys = b' '.join(self.key() for _ in range(self.random.choice([1, 1, 1, 2, 5, 30])))
            if not self.in_step:
                # If the start is parsed as the end of a value, the rest must not exceed the line length.
                keys = keys[:1500]
            elif self.random.random() < 0.02:
                keys += b' key1' * 600
                return b'get ' + keys + self.end()
            name = self.random.choice([b'get', b'gets', b'gets', b'gat ', b'gats '])
            if name.endswith(b' '):
                name += self.exptime()
            return name + self.random.choice([b' ', b'  ']) + keys + self.end()
        if r < 0.75:
            delta = self.number_word(self.random.choice([b'0', b'1', b'95', b'18446744073709551615']))
            name = self.random.choice([b'incr', b'decr'])
            return name + b' ' + self.key() + b' ' + delta + self.noreply() + self.end()
        if r < 0.80:
            return b'touch ' + self.key() + b' ' + self.exptime() + self.noreply() + self.end()
        if r < 0.86:
            return b'delete ' + self.key() + self.noreply() + self.end()
        if r < 0.87:
            # In memcached a delayed flush restores values that an earlier flush removed.
            delay = b' 100000' if self.number < 200 else self.random.choice([b'', b' 0', b' -1'])
            return b'flush_all' + delay + self.noreply() + self.end()
        return self.random.choice(LINES + LONG_LINES if self.in_step else LINES) + self.end()

    def commands(self):
        all = [self.command() for _ in range(self.random.choice([1, 3, 10, 25]))]
        if self.in_step:
            return all
        all = b''.join(all)
        if self.random.random() < 0.05:
            # Placed first, as on this error memcached drops unsent replies.
            start = self.random.choice([b'get key1 ', b'gets ', b'gat -1 key0 key1 ', b'get key1 key2 '])
            all = start + LONG + b' key0\r\n' + all
        if self.random.random() < 0.05 and max(map(len, all.split(b'\n'))) < 600:
            all = bytearray(all)
            for _ in range(self.random.randrange(1, 4)):
                all[self.random.randrange(len(all))] = self.random.choice(OTHERS)
            all = UNWANTED.sub(b'zz', bytes(all))
        # Completes a value that lacks a byte, as memcached drops replies if a connection ends within one.
        return self.pieces(all + b'\r\nversion\r\n')

    def closing(self):
        return self.random.choice(CLOSING) if self.random.random() < 0.3 else b''

    def pieces(self, all):
        if self.random.random() < 0.7:
            return [all]
        cuts = sorted(self.random.randrange(len(all) + 1) for _ in range(self.random.randrange(1, 6)))
        return [all[a:b] for a, b in zip([0] + cuts, cuts + [len(all)])]


OTHERS = [byte for byte in range(256) if byte != ord('-')]
# Commands that only memcached supports, and those that a delayed flush would affect.
UNWANTED = re.compile(rb'(?i)\bm[a-z]\b|watch|lru_crawler|cache_memlimit|slabs |flush_all [0-9]|HTTP')
VERSION = re.compile(rb'^VERSION [^\r\n]*', re.M)
LAST_VERSION = re.compile(rb'VERSION [^\r\n]*\r\n$')


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(('127.0.0.1', port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(20)
        self.received = bytearray()

    def receive(self, until=None):
        """Receives until the end, or until the newly received bytes match."""
        begin = len(self.received)
        try:
            while until is None or not until.search(self.received, max(begin, len(self.received) - 100)):
                more = self.socket.recv(1 << 20)
                if not more:
                    break
                self.received += more
        except ConnectionResetError:
            pass

    def send(self, pieces):
        try:
            for piece in pieces:
                self.socket.sendall(piece)
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server closed the connection

    def step(self, request):
        self.socket.sendall(request + b'version\r\n')
        self.receive(LAST_VERSION)

    def at_once(self, pieces):
        sender = Thread(target=self.send, args=(pieces,))
        if sum(map(len, pieces)) < 30_000:
            sender.run()
        else:
            sender.start()
        self.receive()
        if sender.is_alive():
            sender.join()

    def all(self):
        self.socket.close()
        return VERSION.sub(b'VERSION', bytes(self.received))


def talk(port, commands, in_step, closing):
    connection = Connection(port)
    if not in_step:
        connection.at_once(commands)
        return connection.all()
    for request in commands:
        connection.step(request)
    connection.send([closing])
    connection.receive()
    return connection.all()


def main():
    ports = [int(port) for port in sys.argv[1:3]]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 10_000
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    sent = received = 0
    for number in range(count):
        session = Session(random.Random(seed * 1_000_003 + number), number)
        commands, closing = session.commands(), session.closing()
        first, second = (talk(port, commands, session.in_step, closing) for port in ports)
        sent += sum(map(len, commands))
        received += len(first)
        if first != second:
            at = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))
            print(f'session {number} of seed {seed} differs at byte {at}:', file=sys.stderr)
            print('  sent  ', [bytes(c[:1500]) for c in commands], closing[:80], file=sys.stderr)
            print('  first ', first[max(0, at - 200):at + 100], file=sys.stderr)
            print('  second', second[max(0, at - 200):at + 100], file=sys.stderr)
            # Those that follow differ as a consequence.
            sys.exit(1)
    print(f'{count} sessions, {sent >> 10} KiB sent, {received >> 10} KiB received: identical')


if __name__ == '__main__':
    main()

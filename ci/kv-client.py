#!/usr/bin/env python3
"""Tests a memcached server through the client library pymemcache: ci/kv-client.py PORT."""
import sys

from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError


def check(what, actual, expected):
    if actual != expected:
        sys.exit(f'{what}: {actual!r} instead of {expected!r}')


def main():
    server = ('127.0.0.1', int(sys.argv[1]))
    client = Client(server, timeout=20, default_noreply=False)
    check('set', client.set('key', b'value', expire=100), True)
    check('get', client.get('key'), b'value')
    check('get of none', client.get('none', 'default'), 'default')
    check('add', (client.add('key', b'x'), client.add('other', b'x')), (False, True))
    check('replace', (client.replace('key', b'new'), client.replace('none', b'x')), (True, False))
    check('append', client.append('key', b'+'), True)
    check('prepend', client.prepend('key', b'-'), True)
    value, unique = client.gets('key')
    check('gets', value, b'-new+')
    check('cas', client.cas('key', b'1', unique), True)
    check('cas again', client.cas('key', b'2', unique), False)
    check('cas of none', client.cas('none', b'2', unique), None)
    check('incr', client.incr('key', 41), 42)
    check('decr', client.decr('key', 50), 0)
    check('incr of none', client.incr('none', 1), None)
    check('touch', (client.touch('key', 100), client.touch('none', 100)), (True, False))
    check('delete', (client.delete('key'), client.delete('key')), (True, False))
    many = {f'key{n}': b'%d' % n * 50 for n in range(1000)}
    check('set_many', client.set_many(many), [])
    check('get_many', client.get_many([*many, 'none']), many)
    check('gets_many', len(client.gets_many(many)), 1000)
    check('delete_many', client.delete_many(many), True)
    for n in range(1000):
        client.set(f'quiet{n}', b'x', noreply=True)
    check('noreply', len(client.get_many([f'quiet{n}' for n in range(1000)])), 1000)
    large = bytes(range(256)) * 4000
    check('large', (client.set('large', large), client.get('large') == large), (True, True))
    try:
        client.set('large', large * 2)
        sys.exit('set of a value above the size limit succeeded')
    except MemcacheServerError:
        pass
    try:
        client.incr('quiet0', 1)
        sys.exit('incr of a non-numeric value succeeded')
    except MemcacheClientError:
        pass
    check('stats', client.stats()[b'curr_items'] > 0, True)
    check('version', client.version().count(b'.'), 2)
    check('flush_all', (client.flush_all(), client.get('quiet0')), (True, None))
    client.quit()
    pool = PooledClient(server, max_pool_size=4, timeout=20)
    check('pool', (pool.set('key', b'value'), pool.get('key')), (True, b'value'))


main()

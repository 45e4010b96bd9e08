"""A dataset in a remote store, through fsspec: `s3://`, `gs://`, `az://`, `memory://`, or whatever else fsspec knows.

Names are those of `interlock.drain._layout`. What is different, since a store has no rename, no append and no lock:

- A shard is written on this machine and *uploaded* under its name (`_bucket`). A file appears whole. The files of a
  folder appear one by one, the one that makes it readable last. Either way what counts is its record.
- A log is a prefix, each commit an object in it (`_entries`): `manifest.jsonl/00000007.jsonl`. Objects are created only
  if there is none of that number: so of two writers that both believe in their lease, one commits.
- A lock is a lease (`_leases`): an object that says who holds it until when, and is renewed meanwhile.
- Shards have eight digits more in their names, new ones for each drain: so nobody uploads over a committed shard.

Readers and the rest of the drain know nothing of this: they ask a `Storage`.
"""

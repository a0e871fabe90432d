"""Batch prediction of many images: streamed lists, shards on any machine, merging."""

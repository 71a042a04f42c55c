"""Embeddings of texts, and their similarity.   python embed.py [ADDRESS]"""
import sys

from hydrant import Client

TEXTS = ["The whale rose beside the boat.", "A great fish came up near the ship.", "He paid three dollars for the room."]

with Client(*sys.argv[1:]) as client:
    vectors = [client.embed(text, pooling="mean").embedding for text in TEXTS]
for text, vector in zip(TEXTS, vectors):
    print(f"{sum(a * b for a, b in zip(vectors[0], vector)):.3f}  {text}")

"""Many requests at once, with asyncio.   python many_at_once.py [ADDRESS]"""
import asyncio
import sys

from hydrant import AsyncClient


async def main() -> None:
    async with AsyncClient(*sys.argv[1:]) as client:
        starts = ["The old captain", "The sea", "In the morning", "Three days before"]
        answers = await asyncio.gather(*(client.generate(start, max_tokens=20, temperature=0) for start in starts))
        for start, answer in zip(starts, answers):
            print(start + answer.text)
        async for piece in client.stream("Once upon a time", max_tokens=20).texts():
            print(piece, end="", flush=True)
        print()


asyncio.run(main())

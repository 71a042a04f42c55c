"""Checked by mypy --strict, not run. Expected errors are marked, and an unused mark is an error too."""
from hydrant import Answer, Client, Delta, GenerateRequest, HydrantError, Usage
from hydrant.aio import AsyncClient


def sync(client: Client) -> None:
    answer: Answer = client.generate("text", max_tokens=1, temperature=0, on_pressure="evict", stop=["a", "b"])
    client.generate([1, 2, 3], cache_policy="h2o", cache_ratio=0.2, params={"decode_cap": 5})
    client.generate([{"role": "user", "content": "Hello"}], tools=[{"type": "function"}])
    client.generate("text", max_token=1)  # type: ignore[call-arg]
    client.generate("text", max_tokens="1")  # type: ignore[arg-type]
    client.generate("text", on_pressure="evacuate")  # type: ignore[arg-type]
    client.embed("text", temperature=0)  # type: ignore[call-arg]
    for result in client.generate_batch(["text", [1, 2], GenerateRequest(text="a")], max_tokens=1):
        print(result.reason if isinstance(result, HydrantError) else result.text)
    client.generate_batch(["text"], max_token=1)  # type: ignore[call-arg]
    for event in client.stream("text"):
        if isinstance(event, Delta):
            text: str = event.text
            print(text)
    usage: Usage | None = answer.usage
    seconds: float | None = HydrantError.of(None).retry_after
    print(usage, seconds, client.contexts.compress("text", ttl_s=1).context.handle)


async def concurrent(client: AsyncClient) -> None:
    answer: Answer = await client.generate("text", max_tokens=1)
    async for text in client.stream("text").texts():
        print(text + answer.text)
    vector: list[float] = list((await client.embed("text", pooling="mean")).embedding)
    print(vector)

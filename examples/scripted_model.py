"""An agent of thirty lines, and the model that says what the prompt tells it to say.

    python examples/scripted_model.py

This is how to test an agent of your own: no key, no network, the same answer every time.
"""

import asyncio
import json

import httpx2

from oubliette.testing.model_server import ModelServer

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
PROMPT = """\
say Let me see.
call add {"a": 20, "b": 22}
usage 1200 34
"""


async def agent(http: httpx2.AsyncClient, base_url: str, prompt: str) -> str:
    """Ask the model until it calls no tool any more; what it said last."""
    messages = [{"role": "user", "content": prompt}]
    while True:
        body = {"model": "any", "messages": messages, "tools": [TOOL]}
        answer = await http.post(f"{base_url}/chat/completions", json=body)
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        messages.append(message)
        if "tool_calls" not in message:
            print("tokens:", answer.json()["usage"]["total_tokens"])
            return message["content"]
        for call in message["tool_calls"]:
            given = json.loads(call["function"]["arguments"])
            result = str(given["a"] + given["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def main() -> None:
    async with ModelServer() as model, httpx2.AsyncClient() as http:
        print("the agent says:", await agent(http, model.url, PROMPT))
        print("requests:", [request.path for request in model.requests])
        refused = await http.post(
            f"{model.url}/messages",
            json={
                "messages": [{"role": "user", "content": "error 529 busy"}],
                "tools": [{"name": "add"}],
            },
        )
        print("an error:", refused.status_code, refused.json()["error"]["type"])


if __name__ == "__main__":
    asyncio.run(main())

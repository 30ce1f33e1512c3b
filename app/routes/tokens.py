"""POST /tokenize and /detokenize."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response

from app.body import read_body
from app.errors import invalid
from app.logprobs import token_text
from app.prompts import TemplateOptions, chat_tokens, check_ids, completion_tokens
from app.schemas.parsing import parse
from app.schemas.tokens import DetokenizeRequest, TokenizeRequest
from app.service import Service


async def tokenize(service: Service, request: Request) -> Response:
    """The token ids of a prompt or of a rendered chat, as a generation would see them."""
    body = await read_body(request, service.max_body_bytes)
    reply = await service.off_loop(service.effort(body), _tokenize, service, body)
    return Response(reply, media_type="application/json")


async def detokenize(service: Service, request: Request) -> Response:
    """The text of token ids, control tokens included."""
    body = await read_body(request, service.max_body_bytes)
    reply = await service.off_loop(len(body), _detokenize, service, body)
    return Response(reply, media_type="application/json")


def _tokenize(service: Service, body: bytes) -> bytes:
    request = parse(TokenizeRequest, body, strict_fields=service.strict_fields)
    service.require_model(request.model)
    if request.messages is not None:
        tokens = chat_tokens(service, request.messages, TemplateOptions.of(request))
    elif request.prompt is not None:
        special = request.add_special_tokens is not False
        tokens = completion_tokens(service, request.prompt, special=special)
    else:
        raise invalid("Give prompt or messages.", "prompt", "missing_required_parameter")
    pieces = map(token_text, map(service.tokenizer.token_bytes, tokens))
    return orjson.dumps(
        {
            "count": len(tokens),
            "max_model_len": service.max_model_len,
            "tokens": tokens,
            "token_strs": list(pieces) if request.return_token_strs else None,
        }
    )


def _detokenize(service: Service, body: bytes) -> bytes:
    request = parse(DetokenizeRequest, body, strict_fields=service.strict_fields)
    service.require_model(request.model)
    check_ids(service, request.tokens, "tokens")
    prompt = service.tokenizer.decode(request.tokens, skip_special=False)
    return orjson.dumps({"prompt": prompt})

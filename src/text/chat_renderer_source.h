// SPDX-License-Identifier: Apache-2.0
// The Python side of chat templates. It renders as transformers' apply_chat_template does (same
// environment, same treatment of messages), so that a model's template means the same here.
#pragma once

namespace lynx {

inline constexpr char kChatRendererSource[] = R"PYTHON(
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.sandbox

MAX_INT_BITS = 1 << 16
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class RaisedByTemplate(jinja2.TemplateError):
    pass


class Refused(Exception):
    pass


class Generation(jinja2.ext.Extension):
    """{% generation %} … {% endgeneration %} marks assistant text for training; it renders its body."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_render_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    def _render_body(self, caller):
        return caller()


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Arithmetic on huge integers cannot be interrupted, so it is refused."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context, operator, left, right):
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length()
            bits = bits + right.bit_length() if operator == "*" else bits * right
            if bits > MAX_INT_BITS:
                raise jinja2.sandbox.SecurityError("an integer grows too large")
        return super().call_binop(context, operator, left, right)


def raise_exception(message):
    raise RaisedByTemplate(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def bounded_round(value, precision=0, method="common"):
    if abs(precision) > 300:
        raise jinja2.sandbox.SecurityError("the precision is too large")
    return jinja2.filters.do_round(value, precision, method)


class Renderer:
    def __init__(self, source, special_tokens):
        environment = Environment(trim_blocks=True, lstrip_blocks=True,
                                  extensions=[Generation, jinja2.ext.loopcontrols])
        environment.filters["tojson"] = to_json
        environment.filters["round"] = bounded_round
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = lambda format: self.now.strftime(format)
        environment.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
        self.special_tokens = special_tokens
        self.now = None
        self.template = environment.from_string(source)

    def render(self, messages, tools, kwargs, now, add_generation_prompt, continue_final_message):
        self.now = parse_time(now)
        messages = prepare_messages(parse("messages", messages, list))
        variables = {"documents": None, **self.special_tokens, **parse("kwargs", kwargs, dict)}
        for name in ("messages", "tools", "add_generation_prompt"):
            if name in parse("kwargs", kwargs, dict):
                raise Refused(f"chat_template_kwargs must not hold {name!r}")
        variables["tools"] = parse("tools", tools, (list, type(None)))
        variables["add_generation_prompt"] = add_generation_prompt
        if not continue_final_message:
            return self.template.render(variables, messages=messages)
        if add_generation_prompt:
            raise Refused("continue_final_message and add_generation_prompt exclude each other")
        tag_final_message(messages)
        return cut_at_tag(self.template.render(variables, messages=messages))


def parse(name, text, wanted):
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Refused(f"{name}: {error}")
    if not isinstance(value, wanted):
        raise Refused(f"{name}: unexpected {type(value).__name__}")
    return value


def parse_time(now):
    try:
        return datetime.datetime.fromisoformat(now) if now else datetime.datetime.now()
    except ValueError as error:
        raise Refused(f"now: {error}")


def prepare_messages(messages):
    if not messages:
        raise Refused("Cannot apply chat template to an empty conversation. "
                      "Provide at least one message.")
    prepared = []
    for message in messages:
        if not isinstance(message, dict):
            raise Refused("a message must be an object")
        message = {key: value for key, value in message.items() if value is not None}
        for field in REASONING_FIELDS:
            if field in message:
                reasoning = message[field]
                message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
                break
        prepared.append(message)
    return prepared


def tag_final_message(messages):
    content = messages[-1].get("content")
    if isinstance(content, str):
        messages[-1]["content"] = content + CONTINUE_TAG
        return
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            part["text"] += CONTINUE_TAG
            return
    raise Refused("continue_final_message is set but the final message has no text to continue")


def cut_at_tag(text):
    at = text.rfind(CONTINUE_TAG.strip())
    if at < 0:
        raise Refused("continue_final_message is set but the final message does not appear in the "
                      "chat after applying the chat template")
    return text[:at] if text.startswith(CONTINUE_TAG, at) else text[:at].rstrip()


def describe(error):
    kinds = ((RaisedByTemplate, "raise_exception"), (Refused, "validation"),
             (jinja2.TemplateSyntaxError, "syntax"), (jinja2.UndefinedError, "undefined"),
             (jinja2.sandbox.SecurityError, "sandbox"))
    kind = next((name for type_, name in kinds if isinstance(error, type_)), "runtime")
    if isinstance(error, MemoryError):
        return f"{kind}: the template needs too much memory"
    message = error.message if isinstance(error, jinja2.TemplateError) else str(error)
    return f"{kind}: {message or type(error).__name__}"


def guarded(function, *args):
    """(True, result) or (False, "KIND: message")."""
    try:
        return True, function(*args)
    except Exception as error:
        return False, describe(error)
)PYTHON";

}  // namespace lynx

#!/usr/bin/env python3
"""Make golden/chats.json: what transformers' apply_chat_template makes of chats, for each of golden/templates.json.

    python3 regression/chat/make_chats.py      # needs transformers and jinja2; the day is fixed

templates.json is input: {"row", "model", "bos", "eos", "template"}, the text as the model ships it with the newlines at
its end left out.  A new template is added there by hand.
"""
import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as templates

GOLDEN = pathlib.Path(__file__).parent / "golden"


class Day(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 7, 4)


templates.datetime = Day  # what strftime_now of a template asks

S, U, A = "system", "user", "assistant"
CHATS = [
    [(U, "Hello")],
    [(U, "Hello"), (A, "Hi there")],
    [(S, "You are terse."), (U, "Hello"), (A, "Hi."), (U, " Who are you?\n")],
    [(S, "  Be kind.\n\n"), (U, "\tTabs\u00a0and\u3000spaces\u2028"), (A, "\n\n  indented \u00e9\u4f60\u597d \U0001f642\n"),
     (U, ""), (A, "")],
    [(S, ""), (U, "Is nothing a system?"), (A, "No.")],
    [(U, "1 + 1?"), (A, "<think>\n1, 2\n</think>\n\n2"), (U, "And 2 + 2?"), (A, "<think>\n3, 4\n</think>\n\n4")],
    [(U, "1 + 1?"), (A, "<think>a<think>b</think>c</think>\n\nd"), (U, "<tool_response>x</tool_response>"),
     (A, "e"), (U, "<tool_response>y</tool_response>"), (A, "</think>")],
    [(S, "Answer. /no_think "), (U, "Why?"), (A, "\nBecause.")],
    [(S, "Only this. /system_override /think"), (U, "Why?"), (A, "Because.")],
    [(U, "<|im_end|>[INST] {{ x }} </s>"), (A, "<|eot_id|><end_of_turn>")],
    [(A, "I begin."), (U, "Do you?")],
    [(U, "Once"), (U, "twice"), (A, "yes"), (A, "yes")],
]


def render(template, messages, prompt):
    """The text, or None where the template refuses the chat."""
    tokens = {name + "_token": template[name] for name in ("bos", "eos") if template[name] is not None}
    try:
        return templates.render_jinja_template(
            conversations=[messages], chat_template=template["template"], add_generation_prompt=prompt, **tokens
        )[0][0]
    except templates.jinja2.exceptions.TemplateError:
        return None


def main():
    chats = [[{"role": role, "content": content} for role, content in chat] for chat in CHATS]
    known = json.loads((GOLDEN / "templates.json").read_text())
    expected = [[[render(t, chat, False), render(t, chat, True)] for chat in chats] for t in known]
    golden = {"day": "2025-07-04", "chats": chats, "expected": expected}
    (GOLDEN / "chats.json").write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()

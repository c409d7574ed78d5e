"""Facts as one HTML document, or as Markdown."""

import math
import re
import unicodedata
from typing import Any

from tfdp.report import numbers, words
from tfdp.report.facts import Facts
from tfdp.report.summary import FALSE_POSITIVE_RATES

# Kinds of characters that are not shown. Some turn the text around them the other way.
_HIDDEN = {"Cc", "Cf", "Co", "Cs"}
# What Markdown, or HTML inside of it, would act on.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~])")


def _jinja() -> Any:
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "A report needs Jinja2 and Matplotlib: pip install tfdp[report]."
        ) from error
    return jinja2


def escape_markdown(value: Any) -> str:
    r"""Returns text on one line that Markdown shows as it is, in a table too.

    Example:
        >>> escape_markdown("a|b <b>*c*</b>")
        'a\\|b \\<b\\>\\*c\\*\\</b\\>'
    """
    text = " ".join(str(value).split()).replace("&", "&amp;")
    return _MARKDOWN.sub(r"\\\1", text).replace("://", ":&#8203;//")


def visible(value: Any) -> Any:
    r"""Returns text with the escape that Python has for every character that is not shown but may
    change how others are; whatever is no plain text as it is.

    Example:
        >>> print(visible("data\u202eset"))
        data\u202eset
    """
    if type(value) is not str:
        return value
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in _HIDDEN and c not in "\t\n\r"
        else c
        for c in value
    )


class _Code(str):
    """What stands in a block of code, and is shown there as it is."""


def _environment(**settings: Any) -> Any:
    jinja2 = _jinja()
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tfdp.report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **settings,
    )
    environment.filters.update(
        counted=numbers.counted,
        percent=numbers.percent,
        percent_up=numbers.percent_up,
        interval=numbers.interval,
        exact=numbers.exact,
        round_up=numbers.round_up,
        rest_of=numbers.rest_of,
        span=numbers.span,
        span_down=numbers.span_down,
    )
    environment.globals["words"] = words
    return environment


def _context(facts: Facts, again: str) -> dict[str, Any]:
    shown = facts.costs.costs if facts.steps and math.isfinite(facts.costs.epsilon) else ()
    profiles = {cost.name: cost.profile for cost in shown if cost.profile is not None}
    return {
        "facts": facts,
        "delta": _Code(numbers.exact(facts.costs.target_delta)),
        "costs": facts.costs,
        "commands": [_Code(line) for line in facts.commands(again)],
        "profiles": profiles,
        "rates": FALSE_POSITIVE_RATES,
    }


def to_html(facts: Facts) -> str:
    """Returns one HTML document that refers to nothing outside of itself and runs no script.

    Guarantees:
        Equal facts give equal text. Every text that comes from the ledger is escaped, and what it
        hides is shown (`visible`).

    Raises:
        ModuleNotFoundError: Jinja2 or Matplotlib is not installed.
    """
    environment = _environment(autoescape=True, finalize=visible)
    from markupsafe import Markup

    from tfdp.report import plots

    context = _context(facts, "again.html")
    drawn = {
        "steps_plot": plots.epsilon_over_steps(facts.costs),
        "trade_off_plot": plots.trade_off(context["profiles"], facts.attempts),
    }
    # Nothing in a plot comes from the ledger but numbers, and Matplotlib escapes names of attacks.
    safe = {name: None if svg is None else Markup(svg) for name, svg in drawn.items()}
    return environment.get_template("report.html.j2").render(**context, **safe)


def _in_markdown(value: Any) -> str:
    return value if isinstance(value, _Code) else escape_markdown(visible(value))


def to_markdown(facts: Facts) -> str:
    """Returns the report as Markdown, with tables in place of plots.

    Guarantees:
        As `to_html`.

    Raises:
        ModuleNotFoundError: Jinja2 is not installed.
    """
    environment = _environment(autoescape=False, finalize=_in_markdown)
    return environment.get_template("report.md.j2").render(**_context(facts, "again.md"))

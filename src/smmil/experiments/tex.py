"""Any text as LaTeX that compiles with pdflatex: what it would read as a command or cannot print is written out."""

_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"}
_SPECIAL |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_SPECIAL |= {"<": "$<$", ">": "$>$", "|": "$|$"}
_SPECIAL |= {"†": "$^\\dagger$", "‡": "$^\\ddagger$", "±": "$\\pm$", "·": "$\\cdot$", "−": "$-$", "×": "$\\times$"}
_SPECIAL |= {"ᵀ": "$^\\top$", "≤": "$\\le$", "≥": "$\\ge$", "→": "$\\to$", "↑": "$\\uparrow$", "↓": "$\\downarrow$"}
_SPECIAL |= {"α": "$\\alpha$", "β": "$\\beta$", "λ": "$\\lambda$", "µ": "$\\mu$", "…": "\\dots{}", "–": "--"}
_SPECIAL |= {"¼": "$\\frac14$", "½": "$\\frac12$"}
_TILDE = "\u0303"  # a combining mark after its letter, as in L̃


def tex_text(text: str) -> str:
    """The text with every special sign escaped, once."""
    found: list[str] = []
    for sign in text:
        if sign == _TILDE and found:
            found[-1] = f"$\\tilde {found[-1]}$"
        else:
            found.append(_SPECIAL.get(sign, sign))
    return "".join(found)

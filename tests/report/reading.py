"""Reads a finished page as a strict browser would."""

import html.parser

VOID = {"meta", "br", "img", "hr", "link"}


class Page(html.parser.HTMLParser):
    """A page whose tags must be balanced; keeps what the tests ask about."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def labels(self) -> list[str]:
        """What readers of the screen are told of parts of the page."""
        found = [given.get("aria-label") for _, given in self.elements]
        return [label for label in found if label]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

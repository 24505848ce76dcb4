"""Random texts, cut anywhere: is what is said for the pieces what the whole text would say, and how long does it wait?

megatalker bench rewriting --texts 40000
"""

import argparse
import random
import time
from collections import Counter

from megatalker.prompt.cleaning import TextCleaner, clean
from megatalker.prompt.rewriting import Lexicon, TextRewriter
from megatalker.prompt.rewriting.normalisation import LANGUAGES, normaliser_of
from megatalker_benchmarks.report import add_json_option, hand_out, whole

WORDS = {
    "New York": "Noo York",
    "New York City": "the big one",
    "sql": "sequel",
    "AT&T": "A T and T",
    "C++": "see plus plus",
    "Dr": "doctor",
    "km": "kay em",
    "5G": "five gee",
    "北京": "背景",
    "서울": "소울",
    "naïve": "nigh eve",
}
LEXICON = Lexicon(WORDS)

PARTS = (
    "12", "3.5", "1,234.56", "1.234,56", "0042", "007", "5", "21st", "2nd", "$", "€5", "£3.50", "%", "km", "km/h",
    " km", "°C", "-", "–", "5-10", "3/4", "½", "10:30", " p.m.", "p.m", " a", ".m.", "am", "March", "Mar", "ch 3",
    ", 2024", "2024-03-05", "24.12.1999", "Dr.", "No.", " no", "etc.", "z. B.", "u.a.", "St.", "St", "Mio.",
    " million", "www.", "example.com", "https://x.io/a?b=1", "john@", "x.org", "+49 30", " 1234567", "(555)",
    " 123-4567", "COVID-19", "B2B", "3D", "v1.2.3", "#5", "'90s", "New", " York", " City", "sql", "SQL", "Sql",
    "AT&T", "AT", "C++", "5G", "北京", "北", "サウル", "서울", "서", "naïve", "nai", "\u0308", "ve", "2024年",
    "3月5日", "下午", "公里", "5公", "里", "个", "시", "30분", "개", "살", " руб.", "млн", " г.", "мая", "ое", "й",
    "the", " a ", "I", "word", "ünï", " ", "  ", "\n", "\n\n", ".", ",", ";", "!", "?", "(", ")", "\"", "'", "’",
    "“", "…", "。", "、", "！", "1" * 20, "x" * 40, "9" * 300, "a" * 300, "/", ":", "@", "_", "&", "\U0001f600",
    "１２",
)  # fmt: skip


def random_text(chance: random.Random, most_parts: int = 24) -> str:
    """Return a text made of parts that touch, or have a space between them."""
    parts = chance.choices(PARTS, k=chance.randint(1, most_parts))
    return "".join(part + chance.choice(("", "", " ")) for part in parts)


def random_pieces(chance: random.Random, text: str) -> list[str]:
    """Return the text cut anywhere; some pieces are empty."""
    pieces, at = [], 0
    while at < len(text):
        size = chance.choice((0, 1, 1, 1, 2, 3, 5, 8, 13, 100))
        pieces.append(text[at : at + size])
        at += size
    return pieces


def random_rewriter(chance: random.Random) -> TextRewriter:
    """Return a rewriter of a random language, with or without words, that does something."""
    language = chance.choice((None, *LANGUAGES))
    choice = chance.randrange(3)
    tables = [] if choice == 0 else LEXICON.tables(language)
    return TextRewriter(tables, None if choice == 1 else normaliser_of(language))


def said_at_once(rewriter: TextRewriter, text: str) -> str:
    """Return what is said for the whole text."""
    return rewriter.whole(clean(text)).strip()


def said_in_pieces(rewriter: TextRewriter, pieces: list[str]) -> str:
    """Return what is said for its pieces, which are cleaned one by one."""
    cleaner = TextCleaner()
    said = [rewriter.feed(cleaner.feed(piece)) for piece in pieces]
    return "".join((*said, rewriter.feed(cleaner.finish()), rewriter.finish())).strip()


def longest_wait(rewriter: TextRewriter, text: str) -> int:
    """Return the most characters of a clean text that wait, when it comes one character at a time."""
    waiting = longest = 0
    for character in clean(text):
        waiting = 0 if rewriter.feed(character) else waiting + 1
        longest = max(longest, waiting)
    return longest


PLAIN = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of an old tree. "
NUMBERS = "On March 3, 2024 at 10:30 p.m. she paid $5.50 for 2.5 kg of apples, 12 pears and 1/2 a melon in room 101. "


def milliseconds(text: str) -> float:
    """Return how long a text of 400 characters takes to write out, the best of several times."""
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        TextRewriter(LEXICON.tables("english"), normaliser_of("english")).whole((text * 4)[:400])
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def main() -> None:
    """Entry point of ``megatalker bench rewriting``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=whole(), default=2000)
    parser.add_argument("--seed", type=whole(0), default=0, help="of the first text; each has a seed of its own")
    add_json_option(parser)
    options = parser.parse_args()
    waits, different, characters = Counter[int](), list[int](), 0
    for seed in range(options.seed, options.seed + options.texts):
        chance = random.Random(seed)
        text = random_text(chance)
        pieces, rewriter = random_pieces(chance, text), random_rewriter(chance)
        characters += len(text)
        if said_in_pieces(rewriter.copy(), pieces) != said_at_once(rewriter.copy(), text):
            different.append(seed)
        waits[longest_wait(rewriter, text)] += 1
    report = {
        "texts": options.texts,
        "characters": characters,
        "different": len(different),
        "seeds_of_different": different[:10],
        "longest_wait_chars": max(waits),
        "plain_400_chars_ms": round(milliseconds(PLAIN), 3),
        "numbers_400_chars_ms": round(milliseconds(NUMBERS), 3),
    }
    hand_out(report, options.json)

#!/usr/bin/env python3
"""Checks that every name in the docs is in the tree: links, anchors, files, flags, symbols, environment variables.
And that pages name every policy, model family and call.

usage: docs_test.py ROOT

Reads text alone and runs no program. A name of another project belongs on the list of such names below.
"""
import functools
import glob
import os
import pathlib
import re
import sys

# Folders that hold no source of this project.
APART = {".cache", ".git", ".venv", "__pycache__"}
# Files with suffixes of these are this project's when a page names them without a folder.
SOURCES = {".cc", ".cu", ".cuh", ".h", ".proto", ".py"}

# Flags of other programs that pages show: Google Benchmark, CMake, protoc, numactl, systemctl, docker, helm, vLLM.
FLAGS = set("""
    --benchmark_filter --benchmark_repetitions --build --preset --target --descriptor_set_out
    --cpunodebind --interleave --membind --now --runtime --set --save-detailed --save-result
""".split())
# Symbols of other projects.
SYMBOLS = set("""
""".split())
# Words with an underscore of other projects, and terms of formulas.
WORDS = set("""
    cache_aware parentbased_traceidratio prompt_pair prompt_token
""".split())
# Files that a reader makes, and files of other projects.
FILES = set("""
    example.py
""".split())


def walk(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in APART and not name.startswith("build"))
        yield from (pathlib.Path(folder, name) for name in sorted(names))


def text_of(path):
    return path.read_text(encoding="utf-8", errors="replace")


def without_fences(text):
    """The text with the lines of fenced code blocks emptied."""
    kept, inside = [], False
    for line in text.splitlines():
        fence = re.match(r"\s*(```|~~~)", line)
        kept.append("" if inside or fence else line)
        inside ^= bool(fence)
    return "\n".join(kept)


def anchors(text):
    """The anchors that GitHub makes of a page's headings."""
    counts, found = {}, set()
    for title in re.findall(r"^#{1,6} +(.*?) *#*$", without_fences(text), re.M):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        counts[slug] = counts.get(slug, -1) + 1
        found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
    return found


class Tree:
    """Names that occur in the tree outside its pages."""

    def __init__(self, root):
        self.root, self.words, self.flags, self.names = root, set(), set(), set()
        self.pages, self.referrers = [], []  # referrers: sources, each with a page that it names
        self.folders = {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("build")} - APART
        for path in walk(root):
            self.names.add(path.name)
            self.words.add(path.stem)
            if path.suffix == ".md":
                self.pages.append(path)
            elif self.is_source(path):
                self.read(path)

    def is_source(self, path):
        within = path.relative_to(self.root).parts
        if path.name == "docs_test.py" or "data" in within or path.suffix in {".svg", ".png", ".gguf"} or path.is_symlink():
            return False
        return path.stat().st_size < 1 << 20

    def read(self, path):
        text = text_of(path)
        self.words.update(re.findall(r"\w+", text))
        self.referrers += [(path, page) for page in re.findall(r"(?<![\w/.-])docs/[\w./-]+\.(?:md|svg|png)", text)]
        # A literal that begins with a flag declares it, as in CLI11 ("-m,--model", "!--no-x") and argparse.
        for literal in re.findall(r"""["'](!?-[\w,!=-]*)""", text):
            self.flags.update(re.findall(r"--[a-z][\w-]*", literal))
        # A table of names, where a program takes "--" off its arguments.
        if '"--"' in text:
            self.flags.update(f"--{name}" for name in re.findall(r'\{"([a-z][a-z-]*)",', text))
        if path.suffix in {"", ".sh", ".py"}:
            self.flags.update(re.findall(r"^\s*(--[a-z][\w-]*)(?=[)|=*])", text, re.M))
            self.flags.update(re.findall(r"[|=] (--[a-z][\w-]*)", text))

    @functools.lru_cache(maxsize=None)
    def anchors(self, path):
        return anchors(text_of(path))


def expand(name):
    """a/{b,c}.h -> a/b.h, a/c.h; <word> and * stand for anything."""
    name = re.sub(r"<[^>]*>|\.\.\.", "*", name)
    braces = re.search(r"\{([^}]*)\}", name)
    if not braces:
        return [name]
    return [whole for part in braces[1].split(",") for whole in expand(name[:braces.start()] + part + name[braces.end():])]


def exists(tree, name):
    """A path from the root of the tree, or from proto/ as in imports of contracts."""
    return all(glob.glob(str(tree.root / one)) or glob.glob(str(tree.root / "proto" / one)) for one in expand(name.rstrip("/")))


def bad_links(tree, page, text):
    for target in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", without_fences(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"link to {target}: there is no such file"
        elif anchor and file.suffix == ".md" and anchor not in tree.anchors(file):
            yield f"link to {target}: there is no such heading"


def code_words(text):
    """The words of inline code."""
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", without_fences(text)):
        yield from span.split()


def bad_files(tree, text):
    for word in [*code_words(text), *re.findall(r"(?<![\w/.<{-])(?:scripts|tests)/[\w./{},*<>-]+", text)]:
        word = word.strip(".,;:()[]'\"")
        if "://" in word or "=" in word or word.startswith(("/", "~", "-", "$")) or word in FILES:
            continue
        name = word.split(":")[0]
        if "/" not in name:
            if pathlib.Path(name).suffix in SOURCES and re.fullmatch(r"[\w.-]+", name) and name not in tree.names:
                yield f"`{word}`: no file has that name"
        elif name.split("/")[0] in tree.folders or pathlib.Path(name).suffix in SOURCES:
            if not exists(tree, name):
                yield f"`{word}`: there is no such file"


def bad_flags(tree, text):
    for flag in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", text))):
        if flag not in tree.flags and flag not in FLAGS and not flag.endswith("-"):
            yield f"{flag}: no program has that flag"


def bad_symbols(tree, text):
    for word in code_words(text):
        word = re.sub(r"[(<].*$", "", word.strip(".,;:'\""))
        if not re.fullmatch(r"\w+(::~?\w+)*", word):
            continue
        parts = word.split("::")
        camel = re.fullmatch(r"[A-Z][a-z0-9]+([A-Z][a-z0-9]*)+", parts[-1])
        if (camel or len(parts) > 1) and not all(part in tree.words or part in SYMBOLS for part in parts):
            yield f"`{word}`: the tree has no such symbol"
        if len(parts) == 1 and re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", word) and len(word) > 3 and word not in tree.words and word not in WORDS:
            yield f"`{word}`: the tree has no such word"


def bad_variables(tree, text):
    for name in sorted(set(re.findall(r"\bHYDRANT_[A-Z0-9_]*[A-Z0-9]\b", text))):
        if name not in tree.words:
            yield f"{name}: the tree has no such variable"


# Names that users choose from, and the pages with a row of each: sources, expression of a name, pages.
LISTED = [
    ("engine/cache/policies/*.cc", r'(?:(?:return|info =)\s*\{\s*|<AdaPolicy>\()"([a-z][a-z0-9-]*)",',
     ["docs/guide/policies.md", "docs/internals/policies_reference.md"]),
    ("engine/model/hf_*.cc", r'\{"\w+", "(\w+)",\s*Read', ["docs/guide/models.md"]),
    ("proto/hydrant/v1/hydrant.proto", r"^ *rpc (\w+)\(", ["docs/guide/api.md"]),
]


def names_without_a_row(root):
    for sources, expression, pages in LISTED:
        names = {name for path in root.glob(sources) for name in re.findall(expression, text_of(path), re.M)}
        if not names:
            yield f"{sources}: this test finds no names there"
        for page in pages:
            text = text_of(root / page)
            yield from (f"{page}: nothing about `{name}`, of {sources}" for name in sorted(names)
                        if not re.search(rf"`{name}`|^#+ {name}$", text, re.M))


def commits(text):
    """Git has the history of a figure; a page has its date, machine and command."""
    for commit in sorted(set(re.findall(r"\bcommit [0-9a-f]{7,40}\b", text))):
        yield f"{commit}: pages name no commits"


def complaints(tree, page, text):
    yield from bad_links(tree, page, text)
    yield from bad_files(tree, text)
    yield from bad_flags(tree, text)
    yield from bad_symbols(tree, text)
    yield from bad_variables(tree, text)
    yield from commits(text)


# Each of these lines has one stale name.
STALE = """
[a page](docs/no-such-page.md)
[a heading](CONTRIBUTING.md#no-such-heading)
`kernels/no_such_file.h`
`kernels/ops/{attention,no_such_op}.h`
`no_such_file.cuh`
hydrantd --no-such-flag-of-any-program
`NoSuchSymbolAnywhere`
`NoSuchClassAnywhere::Method`
`no_such_field_of_a_message`
HYDRANT_NO_SUCH_VARIABLE
measured at commit 0123abc
""".strip().splitlines()


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    tree = Tree(root)
    blind = [line for line in STALE if not any(complaints(tree, root / "CONTRIBUTING.md", line))]
    found = [f"this test does not see that this is stale: {line}" for line in blind]
    for page in tree.pages:
        text = text_of(page)
        found += [f"{page.relative_to(root)}: {complaint}" for complaint in dict.fromkeys(complaints(tree, page, text))]
    found += names_without_a_row(root)
    for source, page in tree.referrers:
        if not (root / page).exists():
            found.append(f"{source.relative_to(root)}: refers to {page}, which does not exist")
    if found:
        sys.exit("\n".join(found))
    print(f"{len(tree.pages)} pages name {len(tree.flags)} flags and {len(tree.words)} words of the tree as they are")


if __name__ == "__main__":
    main()

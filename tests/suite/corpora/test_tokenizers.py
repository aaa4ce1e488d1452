"""Tokenizers: exact round trips, training on the training side only, caching, hand-over."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import regex
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from suite.corpora import Corpus, Tokenizer, load_corpus, load_tokenizer
from suite.corpora.byte_level import END_OF_TEXT, ByteTokenizer
from suite.corpora.pretrained import pretrained_tokenizer
from suite.errors import InputError
from suite.study import CorpusSpec

# Word pattern of GPT-2's published encoder, the independent route to pre-tokenisation.
WORDS = regex.compile(
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
)
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    [END_OF_TEXT, f"a{END_OF_TEXT}b", "\ufeffx\r\n\0", "  two  spaces "]
)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    spec = CorpusSpec(source="embedded", max_documents=150)
    return load_corpus("worked_math", spec, base=Path())


@pytest.fixture(scope="module")
def bpe(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make("bpe-400", corpus, tmp_path_factory.mktemp("cache"))


def make(text: str, corpus: Corpus | None, cache: Path, base: Path = Path()) -> Tokenizer:
    return load_tokenizer(text, corpus=corpus, cache=cache, key="pretraining.tokenizer", base=base)


def write_corpus(folder: Path, texts: list[str]) -> Corpus:
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "rows.jsonl").write_text(rows)
    return load_corpus("c", CorpusSpec(source="files", path="rows.jsonl"), base=folder)


@given(text=TEXT)
def test_byte_tokens_are_the_bytes(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert bytes(tokenizer.encode(text)) == text.encode("utf-8")
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (257, 256)
    assert tokenizer.decode([97, 256, 98, 255]) == f"a{END_OF_TEXT}b\ufffd"


def test_pairs_decode_to_any_text_and_never_give_the_separator(bpe: Tokenizer) -> None:
    @given(text=TEXT)
    def holds(text: str) -> None:
        ids = bpe.encode(text)
        assert bpe.decode(ids) == text
        assert bpe.eos_id not in ids
        assert bpe.encode_batch([text, "x"]) == [ids, bpe.encode("x")]

    holds()


def test_pairs_merge_as_the_plain_algorithm_does(bpe: Tokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    letters = letters_of_bytes()
    text = "The remainder is 17 + 25 = 42; naïve mod\n\n  done."
    expected: list[int] = []
    for word in WORDS.findall(text):
        parts = [letters[value] for value in word.encode()]
        while True:
            pairs = [ranks.get(pair, len(ranks)) for pair in itertools.pairwise(parts)]
            if not pairs or min(pairs) == len(ranks):
                break
            at = int(np.argmin(pairs))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        expected += [model["vocab"][part] for part in parts]
    assert bpe.encode(text) == expected
    assert len(model["vocab"]) == bpe.vocab_size == 400
    assert len(ranks) == 400 - 257


def letters_of_bytes() -> dict[int, str]:
    """GPT-2's byte alphabet, from the library's own list in the order of the code points."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    direct = {ord(letter): letter for letter in alphabet if ord(letter) < 256}
    shifted = [letter for letter in alphabet if ord(letter) >= 256]
    rest = [value for value in range(256) if value not in direct]
    return direct | dict(zip(rest, shifted, strict=True))


def test_first_pair_is_the_most_frequent_one(tmp_path: Path) -> None:
    texts = [f"zq{'zq' * (index % 3)} {index}" for index in range(80)]
    tokenizer = make("bpe-258", write_corpus(tmp_path, texts), tmp_path / "cache")
    assert len(tokenizer.encode("zq")) == 1
    assert len(tokenizer.encode("qz")) == 2


def test_held_out_documents_do_not_reach_the_vocabulary(tmp_path: Path) -> None:
    texts = [f"common words, number {index}, and words again" for index in range(200)]
    plain = write_corpus(tmp_path / "a", texts)
    # Candidates are added only if they fall on the held-out side, where they must change nothing.
    odd = [f"{'xyzzy ' * 50}{index}" for index in range(200)]
    held_out = set(write_corpus(tmp_path / "probe", odd).held_out)
    more = write_corpus(tmp_path / "b", [*texts, *(text for text in odd if text in held_out)])
    assert len(more.held_out) > len(plain.held_out)
    one, other = (make("bpe-300", c, tmp_path / "cache") for c in (plain, more))
    assert plain.digest != more.digest
    assert one.digest == other.digest


def test_training_repeats_itself_without_the_cache(corpus: Corpus, tmp_path: Path) -> None:
    one, other = (make("bpe-300", corpus, tmp_path / name) for name in ("a", "b"))
    assert one.digest == other.digest
    assert one.digest != make("bpe-301", corpus, tmp_path / "a").digest


def test_cached_file_is_read_and_a_damaged_one_made_again(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make("bpe-300", corpus, tmp_path)
    (path,) = tmp_path.glob("tokenizers/*")
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"{}"):
        path.write_bytes(damaged)
        assert make("bpe-300", corpus, tmp_path).digest == first.digest
        assert path.read_bytes() == content
    assert list(tmp_path.glob("tokenizers/*")) == [path]
    monkeypatch.setattr("suite.corpora.byte_level._train", None)
    assert make("bpe-300", corpus, tmp_path).digest == first.digest


@pytest.mark.parametrize("name", ["byte", "bpe-400"])
def test_saved_tokenizer_is_the_same_in_transformers(
    corpus: Corpus, tmp_path: Path, name: str
) -> None:
    from transformers import AutoTokenizer

    tokenizer = make(name, corpus, tmp_path)
    folder = tmp_path / "saved"
    tokenizer.save(folder)
    reloaded = AutoTokenizer.from_pretrained(str(folder))
    handed_over = make("saved", None, tmp_path, base=tmp_path)
    texts = [*corpus.documents[:20], "ünï\r\n\0 \ufeff", "  a"]
    assert reloaded(texts, add_special_tokens=False)["input_ids"] == tokenizer.encode_batch(texts)
    assert handed_over.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert (handed_over.vocab_size, handed_over.eos_id) == (
        tokenizer.vocab_size,
        tokenizer.eos_id,
    )
    assert handed_over.encode(f"x{END_OF_TEXT}") == tokenizer.encode(f"x{END_OF_TEXT}")
    assert handed_over.decode(handed_over.encode(texts[0])) == texts[0]
    handed_over.save(tmp_path / "again")
    assert make("again", None, tmp_path, base=tmp_path).digest == handed_over.digest


def test_beginning_token_stands_in_for_a_missing_end(bpe: Tokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path / "end")
    settings = json.loads((tmp_path / "end/tokenizer_config.json").read_text())
    for name, role in (("begin", "bos_token"), ("neither", "unk_token")):
        (tmp_path / name).mkdir()
        backend = (tmp_path / "end/tokenizer.json").read_text()
        (tmp_path / name / "tokenizer.json").write_text(backend)
        changed = {key: value for key, value in settings.items() if key != "eos_token"}
        changed[role] = END_OF_TEXT
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(changed))
    assert make("begin", None, tmp_path, base=tmp_path).eos_id == bpe.eos_id
    with pytest.raises(InputError, match="neither an end-of-sequence nor") as caught:
        make("neither", None, tmp_path, base=tmp_path)
    assert caught.value.key == "pretraining.tokenizer"


@pytest.mark.parametrize(
    ("template", "opens"),
    [
        ("<|endoftext|> $A", True),
        ("<|endoftext|> $A <|endoftext|>", True),
        ("$A <|endoftext|>", False),
    ],
)
def test_sequences_open_with_the_special_tokens_that_the_tokenizer_puts_first(
    template: str, opens: bool, bpe: Tokenizer, tmp_path: Path
) -> None:
    assert bpe.opening == ByteTokenizer().opening == ()
    bpe.save(tmp_path / "own")
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "own/tokenizer.json"))
    backend.post_processor = TemplateProcessing(
        single=template, special_tokens=[(END_OF_TEXT, bpe.eos_id)]
    )
    backend.save(str(tmp_path / "own/tokenizer.json"))
    handed_over = make("own", None, tmp_path, base=tmp_path)
    assert handed_over.opening == ((bpe.eos_id,) if opens else ())
    assert handed_over.encode("some text") == bpe.encode("some text")


def test_tokenizer_inside_a_gguf_file_gives_the_same_tokens(
    corpus: Corpus, bpe: Tokenizer, tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    bpe.save(tmp_path / "saved")
    model = json.loads((tmp_path / "saved/tokenizer.json").read_text())["model"]
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(model["vocab"], key=model["vocab"].get))
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control] + [normal] * (bpe.vocab_size - 1))
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_eos_token_id(bpe.eos_id)
    for add in (writer.add_block_count, writer.add_head_count, writer.add_context_length):
        add(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = pretrained_tokenizer(str(tmp_path), key="k", base=Path(), gguf_file="model.gguf")
    texts = [*corpus.documents[:20], f"ünï{END_OF_TEXT}  a\n"]
    assert found.encode_batch(texts) == bpe.encode_batch(texts)
    assert (found.eos_id, found.vocab_size) == (bpe.eos_id, bpe.vocab_size)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bpe-257", "a vocabulary of at least 258"),
        ("bpe-", "is not a tokenizer; write bpe-<vocabulary>"),
        ("bpe-5k", "is not a tokenizer"),
        ("bpe-512", "trained on a corpus and there is none here"),
        ("./absent", "not a folder, seen from"),
        ("empty", "cannot load the tokenizer 'empty'"),
        ("org/absent", "cannot load the tokenizer 'org/absent': OSError: no route"),
    ],
)
def test_impossible_tokenizers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    if "/" in name:

        def unreachable(*_: object, **__: object) -> None:
            raise OSError("no route")

        monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", unreachable)
    with pytest.raises(InputError, match=message) as caught:
        make(name, None, tmp_path, base=tmp_path)
    assert caught.value.key == "pretraining.tokenizer"


def test_vocabulary_that_the_text_cannot_fill_is_refused(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, [f"abc {index}" for index in range(60)])
    with pytest.raises(InputError, match=r"corpora\.c give (\d+) tokens; name bpe-\1 or less"):
        make("bpe-5000", corpus, tmp_path)
    assert not list(tmp_path.glob("tokenizers/*"))

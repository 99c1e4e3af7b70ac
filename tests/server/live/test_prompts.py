import json
from collections import Counter

import pytest
from logdiff.errors import InputError
from logdiff.live.models import Vocabulary, check_model_folder, vocabulary
from logdiff.live.prompts import random_prompts, sample_ids, text_prompts, token_id_prompts
from logdiff.live.runfile import RandomPrompts


def folder(tmp_path, **files):
    for name, data in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    return tmp_path


def test_lengths_are_cycled_to_count_and_special_ids_never_drawn():
    known = Vocabulary(10, None, frozenset({0, 3, 9}))
    prompts = random_prompts(RandomPrompts(count=5, lengths=[2, 400], seed=1), known)
    assert [len(p) for p in prompts] == [2, 400, 2, 400, 2]
    assert {t for p in prompts for t in p} == {1, 2, 4, 5, 6, 7, 8}


def test_ids_are_uniform_over_what_is_allowed():
    drawn = random_prompts(RandomPrompts(count=1, lengths=[70_000], seed=3), Vocabulary(8, None, frozenset({0})))[0]
    counts = Counter(drawn)
    # 7 ids, 10,000 expected each, standard deviation 93: six of them
    assert all(abs(counts[i] - 10_000) < 560 for i in range(1, 8))


def test_the_same_seed_gives_the_same_prompts_and_a_longer_list_starts_with_a_shorter_one():
    known = Vocabulary(1000, None, frozenset())
    short = random_prompts(RandomPrompts(count=2, lengths=[5, 6], seed=4), known)
    assert random_prompts(RandomPrompts(count=4, lengths=[5, 6], seed=4), known)[:2] == short
    assert random_prompts(RandomPrompts(count=2, lengths=[5, 6], seed=5), known) != short


def test_ids_that_the_tokenizer_lacks_are_not_drawn():
    drawn = random_prompts(RandomPrompts(count=1, lengths=[500], seed=0), Vocabulary(100, 7, frozenset()))[0]
    assert set(drawn) == set(range(7))


def test_special_ids_come_from_every_file_of_the_model(tmp_path):
    found = vocabulary(
        folder(
            tmp_path,
            config={"text_config": {"vocab_size": 50, "eos_token_id": 4}, "bos_token_id": 1, "pad_token_id": None},
            generation_config={"eos_token_id": [5, 6]},
            tokenizer_config={"added_tokens_decoder": {"7": {"content": "<x>"}, "60": {}}},
            tokenizer={"model": {"vocab": {"a": 0, "b": 2}}, "added_tokens": [{"id": 8, "content": "<y>"}]},
        )
    )
    assert found == Vocabulary(50, 9, frozenset({1, 4, 5, 6, 7, 8}))


def test_a_model_without_a_vocabulary_size_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="vocab_size"):
        vocabulary(folder(tmp_path, config={"vocab_size": "many"}))


def test_a_folder_is_checked_for_what_a_model_needs(tmp_path):
    with pytest.raises(InputError, match="no such model folder"):
        check_model_folder(tmp_path / "none")
    with pytest.raises(InputError, match=r"no config\.json"):
        check_model_folder(tmp_path)
    folder(tmp_path, config={})
    with pytest.raises(InputError, match="no weights"):
        check_model_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    check_model_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[1, 2], [3", "can't be read"),
        ("{}", "holds no list"),
        ("[]", "holds no list"),
        ("[[1], []]", "prompt 1 is no list"),
        ("[[1], [2, -1]]", "prompt 1 holds"),
        ("[[1.0]]", "prompt 0 holds"),
        ("[[true]]", "prompt 0 holds"),
        ("[[50]]", "beyond the vocabulary of 50"),
        ("[" * 100_000, "can't be read"),
    ],
)
def test_token_id_files_are_checked_prompt_by_prompt(tmp_path, text, words):
    path = tmp_path / "ids.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        token_id_prompts(path, Vocabulary(50, None, frozenset()))


def test_token_ids_are_read_as_they_stand(tmp_path):
    (tmp_path / "ids.json").write_text("[[49, 0], [1]]")
    assert token_id_prompts(tmp_path / "ids.json", Vocabulary(50, None, frozenset())) == [[49, 0], [1]]


def test_text_prompts_are_lines(tmp_path):
    (tmp_path / "t.txt").write_text("one\n\n  two words \n")
    assert text_prompts(tmp_path / "t.txt") == ["one", "  two words "]
    (tmp_path / "e.txt").write_text("\n\n")
    with pytest.raises(InputError, match="no prompt"):
        text_prompts(tmp_path / "e.txt")


def test_sample_names_are_stable_and_sort_in_order():
    assert sample_ids(3) == ["p0000", "p0001", "p0002"]
    assert sample_ids(20_000)[-1] == "p19999"
    assert sample_ids(20_000) == sorted(sample_ids(20_000))

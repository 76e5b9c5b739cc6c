import pytest

from edgeflow.lab.demo.training.tokenizer import SPACE, all_instructions, prompt_ids, prompt_of, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(512)


def test_all_of_printable_ascii_survives_a_round_trip(tokenizer):
    text = "".join(map(chr, range(32, 127))) + "\n"
    ids = tokenizer.encode(text).ids
    assert 0 not in ids
    assert tokenizer.decode(ids) == text


def test_prompts_start_with_bos_and_end_with_the_space_piece(tokenizer):
    ids = prompt_ids(tokenizer, "grasp the red handle")
    assert ids[0] == 1
    assert tokenizer.id_to_token(ids[-1]) == SPACE
    assert ids.count(ids[-1]) == 1


def test_known_instructions_are_whole_words(tokenizer):
    assert max(len(prompt_ids(tokenizer, text)) for text in all_instructions()) <= 24


def test_instructions_are_lower_cased():
    assert prompt_of("Grasp the RED handle") == prompt_of("grasp the red handle")


def test_text_never_becomes_an_action_id(tokenizer):
    assert max(tokenizer.encode("<action_300> quite another Sentence, 123?").ids) < 256


def test_action_ids_and_padding_follow_the_text(tokenizer):
    assert tokenizer.id_to_token(256) == "<action_256>"
    assert tokenizer.token_to_id("<PAD>") == 512


def test_training_is_deterministic(tokenizer):
    assert train_tokenizer(512).to_str() == tokenizer.to_str()

"""Data files have the same names in the log as Delta gives them: VACUUM deletes files with other ones."""

import pytest

from cdc_pipeline.lake.log_paths import has_another_form, path_in_log


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("/p=a-b_c.d~1", "/p=a-b_c.d~1"),
        ("!'()*,;:@&+$", "!'()*,;:@&+$"),
        ('a b%2F<>|`"\x7f', "a%20b%252F%3C%3E%7C%60%22%7F"),
        ("größe=北京\U0001f600e\u0301", "größe=北京\U0001f600e\u0301"),
        ("ü ü", "ü%20ü"),
        ("\x85\xa0\u2009\u2028\u3000", "%C2%85%C2%A0%E2%80%89%E2%80%A8%E3%80%80"),
        ("\u200b\ufeff\u180e", "\u200b\ufeff\u180e"),
    ],
)
def test_a_path_is_escaped_as_javas_uris_are(text: str, written: str) -> None:
    assert path_in_log(text) == written
    assert not has_another_form(written)


@pytest.mark.parametrize("path", ["p=%C3%BC/x", "p=a%40b/x", "%28a%29/x", "p=a%2fb/x"])
def test_a_path_in_another_form_is_seen(path: str) -> None:
    assert has_another_form(path)

//! "Did you mean": the known name that a wrong one was probably meant to be.

use strsim::damerau_levenshtein;

/// The known name nearest to `word`, if it is near enough to be meant: one slip of the keys per three letters.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    let most = length.div_ceil(3);
    known
        .into_iter()
        // Names whose lengths differ by more than that cannot be near; thousands of topics are compared quickly.
        .filter(|name| name.chars().count().abs_diff(length) <= most)
        .map(|name| (damerau_levenshtein(word, name), name))
        .filter(|&(distance, _)| distance <= most)
        .min()
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_forgiven_and_another_word_is_not() {
        let known = ["listen", "http_listen", "max_body", "log_level"];
        for (word, want) in [
            ("lisen", Some("listen")),
            ("litsen", Some("listen")),
            ("maxbody", Some("max_body")),
            ("log_levle", Some("log_level")),
            ("http-listen", Some("http_listen")),
            ("port", None),
            ("", None),
            ("cache", None),
        ] {
            assert_eq!(nearest(word, known), want, "{word}");
        }
        assert_eq!(nearest("orders", []), None);
    }
}

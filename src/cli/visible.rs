//! Text of others, such as bodies, keys and names of consumers, on the terminal of a person: what a terminal would obey,
//! or what would look like another line of the output, is shown and not done.

use std::borrow::Cow;

/// `text` in one line, with everything escaped that a terminal obeys: control characters, and those that turn the
/// direction of writing.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, is_obeyed)
}

/// The same in as many lines as `text` has.
pub(super) fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_obeyed(c))
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(2 * text.len());
    for c in text.chars() {
        if is_escaped(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_and_all_other_text_is_left_alone() {
        for plain in ["", "{\"amount\":1999}", "C:\\temp", "订单 ünïcode 👍🏽", "נמל"] {
            assert_eq!(visible(plain), plain);
        }
        for (text, shown) in [
            ("\x1b[31mred", "\\u{1b}[31mred"),
            ("\x1b]0;pwned\x07", "\\u{1b}]0;pwned\\u{7}"),
            ("one\r\ntwo\tthree", "one\\r\\ntwo\\tthree"),
            ("\u{9b}2J\u{7f}\0", "\\u{9b}2J\\u{7f}\\u{0}"),
            ("\u{202e}991\u{202c}", "\\u{202e}991\\u{202c}"),
        ] {
            assert_eq!(visible(text), shown);
        }
        assert_eq!(visible_lines("one\n\rtwo"), "one\n\\rtwo");
    }
}

//! Small values that clients send, parsed once at the edge: a value that exists is valid.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::limits::{
    MAX_CONSUMER_NAME_BYTES, MAX_DEDUP_ID_BYTES, MAX_HEADER_NAME_BYTES, MAX_HEADERS, MAX_HEADERS_BYTES, MAX_KEY_BYTES,
    MAX_NACK_TEXT_BYTES, MAX_TOPIC_NAME_BYTES,
};

/// A field that a client sent is not acceptable; nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The name of the field as it stands in the API, such as `key`.
    pub field: &'static str,
    /// What is wrong, with the limit.
    pub problem: String,
}

impl Invalid {
    /// A complaint about `field`.
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

macro_rules! text_value {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

text_value! {
    /// Name of a topic: 1 to 128 of `a-z A-Z 0-9 . _ -`, starting with a letter or digit.
    TopicName
}

text_value! {
    /// Business key: 1 to 256 bytes without control characters.
    Key
}

text_value! {
    /// Identity of a produce request: 1 to 128 bytes without control characters.
    DedupId
}

text_value! {
    /// Name of a consumer for people: 0 to 128 bytes without control characters.
    ConsumerName
}

text_value! {
    /// Text of a nack for people: 0 to 256 bytes.
    NackText
}

impl TopicName {
    /// Parses a topic name.
    ///
    /// # Errors
    /// [`Invalid`] naming the field `topic` if the name is empty, too long or has another character.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        length("topic", text, 1, MAX_TOPIC_NAME_BYTES)?;
        let mut chars = text.chars();
        let starts_well = chars.next().is_some_and(|c| c.is_ascii_alphanumeric());
        if !starts_well || !chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')) {
            return Err(Invalid::new(
                "topic",
                "must be letters, digits, '.', '_' or '-', and start with a letter or digit",
            ));
        }
        Ok(Self(text.into()))
    }
}

impl Key {
    /// Parses a business key.
    ///
    /// # Errors
    /// [`Invalid`] naming the field `key`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        length("key", text, 1, MAX_KEY_BYTES)?;
        no_control("key", text)?;
        Ok(Self(text.into()))
    }
}

impl DedupId {
    /// Parses a dedup id.
    ///
    /// # Errors
    /// [`Invalid`] naming the field `dedup_id`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        length("dedup_id", text, 1, MAX_DEDUP_ID_BYTES)?;
        no_control("dedup_id", text)?;
        Ok(Self(text.into()))
    }
}

impl ConsumerName {
    /// Parses a consumer name; it may be empty.
    ///
    /// # Errors
    /// [`Invalid`] naming the field `consumer`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        length("consumer", text, 0, MAX_CONSUMER_NAME_BYTES)?;
        no_control("consumer", text)?;
        Ok(Self(text.into()))
    }
}

impl NackText {
    /// No text.
    #[must_use]
    pub fn none() -> Self {
        Self("".into())
    }

    /// Parses the text of a nack; it may be empty.
    ///
    /// # Errors
    /// [`Invalid`] naming the field `text`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        length("text", text, 0, MAX_NACK_TEXT_BYTES)?;
        Ok(Self(text.into()))
    }
}

/// String headers of a message, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Box<[(Box<str>, Box<str>)]>);

impl Headers {
    /// Parses headers.
    ///
    /// # Errors
    /// [`Invalid`] naming the field `headers` if there are too many, they are too large together, or a name
    /// is empty, too long or has a control character.
    pub fn parse(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, Invalid> {
        let sorted: BTreeMap<String, String> = pairs.into_iter().collect();
        if sorted.len() > MAX_HEADERS {
            return Err(Invalid::new("headers", format!("{} headers; at most {MAX_HEADERS}", sorted.len())));
        }
        let mut bytes = 0;
        for (name, value) in &sorted {
            let well_formed =
                length("headers", name, 1, MAX_HEADER_NAME_BYTES).and_then(|()| no_control("headers", name));
            well_formed.map_err(|invalid| Invalid::new("headers", format!("a name: {}", invalid.problem)))?;
            bytes += name.len() + value.len();
        }
        if bytes > MAX_HEADERS_BYTES {
            return Err(Invalid::new("headers", format!("{bytes} bytes in all; at most {MAX_HEADERS_BYTES}")));
        }
        Ok(Self(sorted.into_iter().map(|(name, value)| (name.into(), value.into())).collect()))
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

fn length(field: &'static str, text: &str, min: usize, max: usize) -> Result<(), Invalid> {
    if text.len() < min {
        return Err(Invalid::new(field, "is required"));
    }
    if text.len() > max {
        return Err(Invalid::new(field, format!("{} bytes; at most {max}", text.len())));
    }
    Ok(())
}

fn no_control(field: &'static str, text: &str) -> Result<(), Invalid> {
    if text.chars().any(char::is_control) {
        return Err(Invalid::new(field, "must not contain control characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_the_limit_pass_and_one_byte_more_is_refused_by_name() {
        assert!(TopicName::parse(&"a".repeat(128)).is_ok());
        let error = TopicName::parse(&"a".repeat(129)).expect_err("129 bytes are too many");
        assert_eq!(error.to_string(), "topic: 129 bytes; at most 128");
        for bad in ["", "-a", ".a", "a b", "a/b", "ä"] {
            assert_eq!(TopicName::parse(bad).expect_err(bad).field, "topic");
        }
        assert!(Key::parse(&"k".repeat(256)).is_ok());
        assert_eq!(Key::parse("a\nb").expect_err("newline").field, "key");
        assert_eq!(Key::parse("").expect_err("empty").to_string(), "key: is required");
    }

    #[test]
    fn headers_are_sorted_and_limited_in_count_and_size() {
        let pair = |n: usize, v: &str| (format!("h{n:02}"), v.to_owned());
        let headers = Headers::parse([pair(2, "b"), pair(1, "a")]).expect("two small headers");
        assert_eq!(headers.iter().collect::<Vec<_>>(), [("h01", "a"), ("h02", "b")]);
        assert!(Headers::parse((0..33).map(|n| pair(n, ""))).is_err());
        assert!(Headers::parse([("a".to_owned(), "x".repeat(8 * 1024))]).is_err());
        assert!(Headers::parse([("a".to_owned(), "x".repeat(8 * 1024 - 1))]).is_ok());
    }
}

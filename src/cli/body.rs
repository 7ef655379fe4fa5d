//! Bodies as they are printed: text where they are text, base64 where they are not.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;

/// A body; in JSON it is `body` or `body_base64`, as `produce --from` reads it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Body {
    /// UTF-8.
    Text {
        /// The text.
        body: String,
    },
    /// Anything else.
    Bytes {
        /// The bytes.
        body_base64: String,
    },
}

impl Body {
    pub(super) fn new(bytes: &[u8]) -> Self {
        match str::from_utf8(bytes) {
            Ok(text) => Self::Text { body: text.to_owned() },
            Err(_) => Self::Bytes { body_base64: BASE64_STANDARD.encode(bytes) },
        }
    }
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text { body } => f.write_str(body),
            Self::Bytes { body_base64 } => write!(f, "base64:{body_base64}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_text_when_it_can_be() {
        assert_eq!(serde_json::to_string(&Body::new(b"a\"b")).expect("plain"), r#"{"body":"a\"b"}"#);
        assert_eq!(serde_json::to_string(&Body::new(&[0xff])).expect("plain"), r#"{"body_base64":"/w=="}"#);
    }
}

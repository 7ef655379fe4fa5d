//! Page tokens: where the next page of a listing starts.
//!
//! To clients they are opaque text. Each names the listing that it belongs to, so that a token of another
//! listing or topic is refused instead of giving a wrong page.

use super::errors::Fault;
use crate::queue::limits::MAX_PAGE_SIZE;
use crate::queue::time::Timestamp;
use crate::queue::values::TopicName;

const DEFAULT_PAGE_SIZE: u32 = 100;

/// The number of items of a page.
pub(super) fn page_size(requested: u32) -> Result<usize, Fault> {
    page_size_or(DEFAULT_PAGE_SIZE, requested)
}

/// The number of items of a page; 0 asks for `default`.
pub(super) fn page_size_or(default: u32, requested: u32) -> Result<usize, Fault> {
    let size = if requested == 0 { default } else { requested };
    if size > MAX_PAGE_SIZE {
        return Err(Fault::invalid("page_size", format!("{size}; must be 1 to {MAX_PAGE_SIZE}")));
    }
    Ok(usize::try_from(size).expect("u32 fits usize"))
}

/// The token of the page of topics after `last`.
pub(super) fn topics_after(last: &TopicName) -> String {
    encode(TOPICS, &[], last.as_str().as_bytes())
}

/// The topic after which the page starts; `None`: at the first.
pub(super) fn parse_topics(token: &str) -> Result<Option<TopicName>, Fault> {
    parse_topic(token, TOPICS)
}

/// Cuts a page that was asked for with one item more down to `size`; gives its last item if another page follows.
pub(super) fn cut<T>(page: &mut Vec<T>, size: usize) -> Option<&T> {
    let is_last = page.len() <= size;
    page.truncate(size);
    page.last().filter(|_| !is_last)
}

/// The token of the page of statistics after those of `last`.
pub(super) fn stats_after(last: &TopicName) -> String {
    encode(STATS, &[], last.as_str().as_bytes())
}

/// The topic after which the page of statistics starts; `None`: at the first.
pub(super) fn parse_stats(token: &str) -> Result<Option<TopicName>, Fault> {
    parse_topic(token, STATS)
}

fn parse_topic(token: &str, listing: u8) -> Result<Option<TopicName>, Fault> {
    if token.is_empty() {
        return Ok(None);
    }
    let bytes = decode(token, listing).ok_or_else(foreign)?;
    let name = std::str::from_utf8(&bytes).ok().and_then(|name| TopicName::parse(name).ok());
    name.map(Some).ok_or_else(foreign)
}

/// The token of the page of dead letters of `topic` after the place (time of death, arrival number). `query` is a sum over
/// the filter.
pub(super) fn dead_letters_after(topic: &TopicName, query: u32, (at, arrival): (Timestamp, u64)) -> String {
    encode(DEAD_LETTERS, &[at.as_millis(), arrival, query.into()], topic.as_str().as_bytes())
}

/// The dead letter after which the page starts; `None`: at the first.
pub(super) fn parse_dead_letters(
    token: &str,
    topic: &TopicName,
    query: u32,
) -> Result<Option<(Timestamp, u64)>, Fault> {
    if token.is_empty() {
        return Ok(None);
    }
    let bytes = decode(token, DEAD_LETTERS).ok_or_else(foreign)?;
    let (at, rest) = bytes.split_first_chunk::<8>().ok_or_else(foreign)?;
    let (arrival, rest) = rest.split_first_chunk::<8>().ok_or_else(foreign)?;
    let (of, name) = rest.split_first_chunk::<8>().ok_or_else(foreign)?;
    if u64::from_be_bytes(*of) != u64::from(query) || name != topic.as_str().as_bytes() {
        return Err(foreign());
    }
    Ok(Some((Timestamp::from_millis(u64::from_be_bytes(*at)), u64::from_be_bytes(*arrival))))
}

/// The token of the page of a listing of messages from a place in its order on. `query` is all else that was asked
/// for.
pub(super) fn messages_from(query: &[u8], (at, arrival): (Timestamp, u64)) -> String {
    encode(MESSAGES, &[at.as_millis(), arrival, crc32c::crc32c(query).into()], &[])
}

/// Where the page starts; `None`: at the first.
pub(super) fn parse_messages(token: &str, query: &[u8]) -> Result<Option<(Timestamp, u64)>, Fault> {
    if token.is_empty() {
        return Ok(None);
    }
    let bytes = decode(token, MESSAGES).ok_or_else(foreign)?;
    let bytes: &[u8; 24] = bytes.as_slice().try_into().map_err(|_| foreign())?;
    let number = |n: usize| u64::from_be_bytes(bytes[n * 8..][..8].try_into().expect("eight bytes"));
    if number(2) != u64::from(crc32c::crc32c(query)) {
        return Err(Fault::invalid("page_token", "belongs to another query; repeat the query that returned it"));
    }
    Ok(Some((Timestamp::from_millis(number(0)), number(1))))
}

const TOPICS: u8 = b't';
const MESSAGES: u8 = b'm';
const DEAD_LETTERS: u8 = b'd';
const STATS: u8 = b's';

fn foreign() -> Fault {
    Fault::invalid("page_token", "is not a next_page_token of this listing")
}

/// Hexadecimal digits of: the listing, the numbers, the name, crc32c of all that.
fn encode(listing: u8, numbers: &[u64], name: &[u8]) -> String {
    let mut bytes = vec![listing];
    bytes.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    bytes.extend(name);
    bytes.extend(crc32c::crc32c(&bytes).to_be_bytes());
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).expect("four bits are a hexadecimal digit");
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn decode(token: &str, listing: u8) -> Option<Vec<u8>> {
    if !token.len().is_multiple_of(2) || !token.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let bytes: Vec<u8> =
        (0..token.len()).step_by(2).map(|at| u8::from_str_radix(&token[at..at + 2], 16).ok()).collect::<Option<_>>()?;
    let (content, sum) = bytes.split_last_chunk::<4>()?;
    let is_whole = crc32c::crc32c(content) == u32::from_be_bytes(*sum);
    let (&first, rest) = content.split_first()?;
    (is_whole && first == listing).then(|| rest.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_only_in_its_own_listing() {
        let orders = TopicName::parse("orders").expect("a name");
        let other = TopicName::parse("other").expect("a name");
        let topics = topics_after(&orders);
        assert_eq!(parse_topics(&topics).ok(), Some(Some(orders.clone())));
        assert_eq!(parse_topics("").ok(), Some(None));
        let dead = dead_letters_after(&orders, 5, (Timestamp::from_millis(7), 9));
        assert_eq!(parse_dead_letters(&dead, &orders, 5).ok(), Some(Some((Timestamp::from_millis(7), 9))));
        let messages = messages_from(b"q", (Timestamp::from_millis(7), 9));
        assert_eq!(parse_messages(&messages, b"q").ok(), Some(Some((Timestamp::from_millis(7), 9))));
        assert_eq!(parse_messages("", b"q").ok(), Some(None));
        for (what, refused) in [
            ("of another topic", parse_dead_letters(&dead, &other, 5).is_err()),
            ("of another filter", parse_dead_letters(&dead, &orders, 6).is_err()),
            ("of another listing", parse_dead_letters(&topics, &orders, 5).is_err() && parse_topics(&dead).is_err()),
            ("of another query", parse_messages(&messages, b"other").is_err()),
            ("of messages", parse_topics(&messages).is_err() && parse_messages(&dead, b"q").is_err()),
            ("cut", parse_topics(&topics[2..]).is_err() && parse_topics(&topics[1..]).is_err()),
            ("not hexadecimal", parse_topics("zz").is_err() && parse_topics("é").is_err()),
            ("one digit changed", parse_topics(&topics.replacen('6', "7", 1)).is_err()),
        ] {
            assert!(refused, "a token {what} is refused");
        }
    }
}

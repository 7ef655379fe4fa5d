//! `duewheel message list`: the messages of a topic in due order.

use clap::{Args, ValueEnum};

use super::args::{at_least_one, instant, not_empty};
use super::exit::{Failure, say_more};
use super::message_view::ListedView;
use super::output::{Format, Listing, Row as _, print_rows, table};
use super::session::Session;
use crate::client::{Client, MessageFilter};
use crate::pb;
use crate::queue::limits::MAX_PAGE_SIZE;
use crate::queue::time::Timestamp;

/// Arguments of `message list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Topic of the messages
    topic: String,
    /// Only messages in this state
    #[arg(long, value_enum)]
    state: Option<State>,
    /// Only messages due at this instant or later (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    due_from: Option<Timestamp>,
    /// Only messages due before this instant (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    due_to: Option<Timestamp>,
    /// Only the live message with this key
    #[arg(long, value_parser = not_empty)]
    key: Option<String>,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = at_least_one::<usize>)]
    limit: usize,
}

/// A state that can be asked for.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    /// Waiting for its due time.
    Scheduled,
    /// Due, waiting for a consumer.
    Ready,
    /// Being worked on.
    Leased,
    /// A dead letter.
    Dead,
}

impl From<State> for pb::MessageState {
    fn from(state: State) -> Self {
        match state {
            State::Scheduled => Self::Scheduled,
            State::Ready => Self::Ready,
            State::Leased => Self::Leased,
            State::Dead => Self::Dead,
        }
    }
}

/// Runs `message list`: page by page, so that a long listing takes no memory and can be cut short by its reader.
pub(super) async fn run(session: &Session, client: &Client, args: ListArgs) -> Result<(), Failure> {
    let ListArgs { topic, state, due_from, due_to: due_until, key, limit } = args;
    let filter = MessageFilter { state: state.map(Into::into), due_from, due_until, key };
    let mut left = limit;
    let mut token = Some(String::new());
    let mut listing = Listing::new(session.format);
    let mut is_first = true;
    while left > 0
        && let Some(at) = token.take()
    {
        let size = u32::try_from(left).unwrap_or(MAX_PAGE_SIZE).min(MAX_PAGE_SIZE);
        let page = client.messages(&topic, &filter, size, &at).await;
        let (page, next) = page.map_err(|error| Failure::call(format!("list the messages of '{topic}'"), &error))?;
        left -= page.len();
        let views: Vec<ListedView> = page.into_iter().map(ListedView::new).collect();
        match session.format {
            Format::Table if is_first => print_rows(session.format, &views)?,
            // Columns are as wide as each page needs; only the first has names.
            Format::Table if !views.is_empty() => {
                let text = table(ListedView::COLUMNS, views.iter().map(ListedView::cells));
                println!("{}", text.split_once('\n').map_or("", |(_, rows)| rows));
            }
            Format::Table => {}
            Format::Json | Format::Jsonl => views.iter().try_for_each(|view| listing.print(view))?,
        }
        is_first = false;
        token = next;
    }
    if session.format == Format::Json {
        listing.finish()?;
    }
    if token.is_some() {
        say_more(limit);
    }
    Ok(())
}

//! The deadline of a call: what is not answered by then ends with `DEADLINE_EXCEEDED`.
//!
//! The transport keeps deadlines too, but says that such a call was cancelled, which it was not, and says nothing of
//! the outcome. This layer lies within the transport's, and its timer is set first, so it is the one that answers. As
//! there, it counts until a call is answered or its stream of answers begins.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tower_layer::Layer;

use super::errors::Fault;

/// How a client says how long a call may take.
const TIMEOUT_HEADER: &str = "grpc-timeout";

/// Ends calls that take longer than their client or the broker allows.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// The longest time of a call, also if the client allows more or says nothing.
    pub longest: Duration,
}

impl<S> Layer<S> for Deadlines {
    type Service = WithDeadlines<S>;

    fn layer(&self, inner: S) -> WithDeadlines<S> {
        WithDeadlines { inner, longest: self.longest }
    }
}

/// A service whose calls have deadlines.
#[derive(Clone, Debug)]
pub struct WithDeadlines<S> {
    inner: S,
    longest: Duration,
}

impl<S> Service<Request<Body>> for WithDeadlines<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let given = given(request.headers()).map_or(self.longest, |given| given.min(self.longest));
        // The timer starts here and not when the call is first looked at, or else the transport's would be first.
        let answered = tokio::time::timeout(given, self.inner.call(request));
        Box::pin(async move {
            answered.await.unwrap_or_else(|_| Ok(Status::from(Fault::deadline_passed(given)).into_http()))
        })
    }
}

/// The time that a client gives its call; `None` if it gives none in the form that gRPC defines: at most eight digits
/// and a unit.
fn given(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(TIMEOUT_HEADER)?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.len() > 8 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_call_is_eight_digits_at_most_and_a_unit() {
        let cases = [
            ("2H", Some(Duration::from_hours(2))),
            ("3M", Some(Duration::from_mins(3))),
            ("99999999S", Some(Duration::from_secs(99_999_999))),
            ("200m", Some(Duration::from_millis(200))),
            ("5u", Some(Duration::from_micros(5))),
            ("0n", Some(Duration::ZERO)),
            ("100000000S", None),
            ("+5S", None),
            ("-5S", None),
            ("5", None),
            ("5x", None),
            ("S", None),
            ("", None),
        ];
        for (text, want) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(TIMEOUT_HEADER, text.parse().expect("a header"));
            assert_eq!(given(&headers), want, "{text}");
        }
        assert_eq!(given(&HeaderMap::new()), None);
    }
}

//! The broker's clock, and the only reader of time.
//!
//! The broker lives by one clock: the wall clock as it was at the start, plus the time since then by
//! `CLOCK_BOOTTIME`, which counts suspend and cannot be set. So a wall clock that is set forward fires nothing
//! early, one that is set back makes nothing late, and the clock of a client does not matter at all.
//!
//! The two differ a little in the long run, so a small difference is worked off, by at most 500 parts per
//! million of the time that passes: the clock never goes back and is never noticeably fast or slow. A larger
//! difference is a *step*: somebody or something set the wall clock. It is reported (a warning, a counter, the
//! offset) and not followed, until an operator adopts it or the broker restarts.
//!
//! Raw time comes through [`RawTime`], so that tests and simulations can let it jump ([`ManualTime`]). Nobody
//! may sleep for longer than [`MAX_SLEEP`] at once: the timers of the system do not count suspend, so only a
//! short sleep notices soon that the clock has moved on.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::queue::time::Timestamp;

/// Longest sleep: after a suspend, what is overdue fires within a second.
pub const MAX_SLEEP: Duration = Duration::from_millis(500);

/// A larger difference between wall clock and broker clock is a step. A leap second that the wall clock takes
/// at once is below it.
pub const STEP: Duration = Duration::from_secs(2);

/// At most one nanosecond in so many is added to or taken from the elapsed time: 500 parts per million.
const SLEW_DIVISOR: i128 = 2_000;

/// If the two raw clocks could not be read within this time, they cannot be compared.
const MAX_UNCERTAINTY: Duration = Duration::from_millis(10);

/// Where raw time comes from.
pub trait RawTime: Send + Sync {
    /// Time since some fixed instant; never goes back, cannot be set, counts suspend.
    fn elapsed(&self) -> Duration;
    /// The wall clock: time since 1970-01-01T00:00:00Z.
    fn wall(&self) -> Duration;
}

/// What to do about a step of the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepPolicy {
    /// Report it and go on as before.
    #[default]
    Report,
    /// Report it and follow it if it leads forward.
    Adopt,
}

/// The wall clock is behind; the broker's clock does not go back within a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the wall clock is {behind_ms} ms behind the broker's clock, which never goes back: restart the broker instead"
)]
pub struct WouldGoBack {
    /// By how much the wall clock is behind, milliseconds.
    pub behind_ms: u64,
}

/// The broker's clock. Clones are the same clock.
#[derive(Clone)]
pub struct Clock {
    shared: Arc<Shared>,
}

struct Shared {
    raw: Box<dyn RawTime>,
    policy: StepPolicy,
    reading: Mutex<Reading>,
}

/// The clock as it was last read.
struct Reading {
    /// The broker's time, nanoseconds since 1970.
    now_ns: i128,
    /// Raw elapsed time at that moment.
    elapsed: Duration,
    /// Wall clock minus broker's time, nanoseconds; positive: the wall clock is ahead.
    offset_ns: i128,
    /// The offset of the step reported last, while it lasts.
    step_ns: Option<i128>,
    /// Steps reported since the start.
    steps: u64,
}

impl Clock {
    /// A clock over the clocks of the system, starting with the wall clock as it is now.
    #[must_use]
    pub fn system(policy: StepPolicy) -> Self {
        Self::over(Box::new(SystemTimeSource), policy)
    }

    /// A clock over `raw`, starting with its wall clock as it is now.
    #[must_use]
    pub fn over(raw: Box<dyn RawTime>, policy: StepPolicy) -> Self {
        let elapsed = raw.elapsed();
        let now_ns = nanos(raw.wall());
        let reading = Reading { now_ns, elapsed, offset_ns: 0, step_ns: None, steps: 0 };
        Self { shared: Arc::new(Shared { raw, policy, reading: Mutex::new(reading) }) }
    }

    /// The present instant, in whole milliseconds, rounded down. Never goes back.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millis(millis(self.read().now_ns))
    }

    /// How long to sleep until the clock shows `instant` (`None`: no reason to wake up), at most [`MAX_SLEEP`].
    /// Exact to the nanosecond, so that a sleeper is neither early nor a millisecond late.
    pub fn sleep_until(&self, instant: Option<Timestamp>) -> Duration {
        let Some(instant) = instant else { return MAX_SLEEP };
        let wait_ns = i128::from(instant.as_millis()) * NANOS_PER_MILLI - self.read().now_ns;
        u64::try_from(wait_ns.max(0)).map_or(MAX_SLEEP, |ns| Duration::from_nanos(ns).min(MAX_SLEEP))
    }

    /// Wall clock minus broker's clock, milliseconds. Positive: the wall clock is ahead.
    pub fn offset_ms(&self) -> i64 {
        let offset_ms = self.read().offset_ns / NANOS_PER_MILLI;
        i64::try_from(offset_ms).unwrap_or(if offset_ms < 0 { i64::MIN } else { i64::MAX })
    }

    /// Steps of the wall clock noticed since the start.
    pub fn steps(&self) -> u64 {
        self.read().steps
    }

    /// True while the wall clock differs by a step that was not followed.
    pub fn is_stepped(&self) -> bool {
        self.read().step_ns.is_some()
    }

    /// Sets the clock forward to the wall clock. Returns by how much, milliseconds.
    ///
    /// # Errors
    /// [`WouldGoBack`] if the wall clock is behind by a millisecond or more; nothing changes.
    pub fn adopt(&self) -> Result<u64, WouldGoBack> {
        let mut reading = self.read();
        if reading.offset_ns <= -NANOS_PER_MILLI {
            return Err(WouldGoBack { behind_ms: millis(-reading.offset_ns) });
        }
        Ok(reading.follow())
    }

    fn read(&self) -> MutexGuard<'_, Reading> {
        let mut reading = self.shared.reading.lock().expect("nothing panics while it reads the clock");
        let raw = &self.shared.raw;
        let (before, wall, after) = (raw.elapsed(), raw.wall(), raw.elapsed());
        // The process may be stopped between the two reads; then the difference means nothing.
        let comparable = after.saturating_sub(before) <= MAX_UNCERTAINTY;
        reading.advance(before, comparable.then_some(wall));
        if reading.judge_step() && self.shared.policy == StepPolicy::Adopt && reading.offset_ns > 0 {
            let by_ms = reading.follow();
            tracing::warn!(by_ms, "the broker's clock was set forward to the wall clock, as configured");
        }
        reading
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Reading {
    /// Moves on to the raw time `elapsed`, slewed towards `wall` if that can be compared and is no step away.
    fn advance(&mut self, elapsed: Duration, wall: Option<Duration>) {
        let passed_ns = nanos(elapsed.saturating_sub(self.elapsed));
        self.elapsed = self.elapsed.max(elapsed);
        self.now_ns += passed_ns;
        let Some(wall) = wall else { return };
        self.offset_ns = nanos(wall) - self.now_ns;
        if !is_step(self.offset_ns) {
            let most = passed_ns / SLEW_DIVISOR;
            let slew = self.offset_ns.clamp(-most, most);
            self.now_ns += slew;
            self.offset_ns -= slew;
        }
    }

    /// Reports a step once. Returns true if there is a new one.
    fn judge_step(&mut self) -> bool {
        if !is_step(self.offset_ns) {
            if self.step_ns.take().is_some() {
                tracing::info!("the wall clock is back in step with the broker's clock");
            }
            return false;
        }
        if self.step_ns.is_some_and(|reported| !is_step(self.offset_ns - reported)) {
            return false;
        }
        self.step_ns = Some(self.offset_ns);
        self.steps += 1;
        let ahead_s = self.offset_ns / 1_000_000_000;
        tracing::warn!(ahead_s, "the wall clock was set; the broker's clock goes on as before");
        true
    }

    /// Jumps forward to the wall clock. Returns by how much, milliseconds.
    fn follow(&mut self) -> u64 {
        let by_ns = self.offset_ns.max(0);
        self.now_ns += by_ns;
        self.offset_ns -= by_ns;
        self.step_ns = None;
        millis(by_ns)
    }
}

fn is_step(difference_ns: i128) -> bool {
    difference_ns.abs() > nanos(STEP)
}

const NANOS_PER_MILLI: i128 = 1_000_000;

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).expect("a Duration has fewer than 2^94 nanoseconds")
}

fn millis(ns: i128) -> u64 {
    u64::try_from(ns / NANOS_PER_MILLI).unwrap_or(u64::MAX)
}

/// The clocks of the system.
struct SystemTimeSource;

impl RawTime for SystemTimeSource {
    fn elapsed(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).expect("time since boot is not negative");
        let nanos = u32::try_from(time.tv_nsec).expect("nanoseconds are below one second");
        Duration::new(seconds, nanos)
    }

    fn wall(&self) -> Duration {
        wall()
    }
}

/// The wall clock, for people: what the CLI shows, and what it resolves relative times against. The broker
/// itself lives by its [`Clock`].
pub fn wall_now() -> Timestamp {
    Timestamp::from_millis(millis(nanos(wall())))
}

/// The wall clock in microseconds since 1970, for measuring lateness finer than due times are.
pub fn wall_now_us() -> u64 {
    u64::try_from(wall().as_micros()).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "this is the one file that reads time")]
fn wall() -> Duration {
    // A wall clock before 1970 is as wrong as one in 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Time since the start of the machine, suspend included, as the broker's clock counts it. To compare with intervals
/// of a broker; what only takes time is measured with a [`Stopwatch`].
pub fn since_boot() -> Duration {
    SystemTimeSource.elapsed()
}

/// Measures how long something takes.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one file that reads time")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Whole milliseconds since the start.
    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whole microseconds since the start.
    pub fn elapsed_us(&self) -> u64 {
        u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Raw time that moves only when it is told to. Clones are the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualTime(Arc<ManualParts>);

#[derive(Debug, Default)]
struct ManualParts {
    elapsed_us: AtomicU64,
    /// Wall clock minus elapsed time.
    wall_offset_us: AtomicI64,
}

impl ManualTime {
    /// Time that stands still at the wall-clock time `at`.
    #[must_use]
    pub fn new(at: Timestamp) -> Self {
        let time = Self::default();
        let offset = i64::try_from(at.as_millis() * 1_000).expect("the instant is in a year with five digits");
        time.0.wall_offset_us.store(offset, Ordering::SeqCst);
        time
    }

    /// A broker's clock over this time.
    #[must_use]
    pub fn clock(&self, policy: StepPolicy) -> Clock {
        Clock::over(Box::new(self.clone()), policy)
    }

    /// Lets time pass: both the wall clock and the elapsed time.
    pub fn advance(&self, by: Duration) {
        let us = u64::try_from(by.as_micros()).expect("a test does not last for ages");
        self.0.elapsed_us.fetch_add(us, Ordering::SeqCst);
    }

    /// Lets so many milliseconds pass.
    pub fn advance_ms(&self, ms: u64) {
        self.advance(Duration::from_millis(ms));
    }

    /// Sets the wall clock forward or back; no time passes.
    pub fn step_wall_ms(&self, by_ms: i64) {
        self.0.wall_offset_us.fetch_add(by_ms * 1_000, Ordering::SeqCst);
    }
}

impl RawTime for ManualTime {
    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.0.elapsed_us.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Duration {
        let offset = self.0.wall_offset_us.load(Ordering::SeqCst);
        Duration::from_micros(self.0.elapsed_us.load(Ordering::SeqCst).saturating_add_signed(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000_000;

    fn manual(policy: StepPolicy) -> (ManualTime, Clock) {
        let time = ManualTime::new(Timestamp::from_millis(START));
        let clock = time.clock(policy);
        (time, clock)
    }

    fn since_start(clock: &Clock) -> u64 {
        clock.now().as_millis() - START
    }

    #[test]
    fn a_step_of_the_wall_clock_is_reported_once_and_not_followed() {
        for step_ms in [86_400_000, 2_001, -2_001, -3_600_000] {
            let (time, clock) = manual(StepPolicy::Report);
            time.advance_ms(10);
            time.step_wall_ms(step_ms);
            assert_eq!(since_start(&clock), 10, "step {step_ms}");
            assert!(clock.is_stepped());
            assert_eq!(clock.offset_ms(), step_ms);
            time.advance_ms(1_000_000);
            assert_eq!(since_start(&clock), 1_000_010, "step {step_ms}");
            assert_eq!(clock.steps(), 1);
            time.step_wall_ms(-step_ms);
            assert!(!clock.is_stepped(), "the wall clock was set right again");
            assert_eq!(clock.offset_ms(), 0);
        }
    }

    #[test]
    fn a_second_step_on_top_of_the_first_is_reported_too() {
        let (time, clock) = manual(StepPolicy::Report);
        time.step_wall_ms(10_000);
        assert_eq!(clock.steps(), 1);
        time.step_wall_ms(1_000);
        assert_eq!(clock.steps(), 1);
        time.step_wall_ms(5_000);
        assert_eq!(clock.steps(), 2);
        assert_eq!(since_start(&clock), 0);
    }

    #[test]
    fn a_small_difference_is_worked_off_at_500_ppm_however_often_the_clock_is_read() {
        for (by_ms, reads) in [(1_000_i64, 1_u64), (1_000, 1_000), (-1_000, 1), (-1_000, 1_000)] {
            let (time, clock) = manual(StepPolicy::Report);
            time.step_wall_ms(by_ms);
            for _ in 0..reads {
                time.advance_ms(1_000_000 / reads);
                clock.now();
            }
            let expected = 1_000_000_i64 + by_ms.signum() * 500;
            assert_eq!(i64::try_from(since_start(&clock)), Ok(expected), "{by_ms} ms in {reads} reads");
            time.advance_ms(2_000_000);
            assert_eq!(clock.offset_ms(), 0, "worked off after 2000 s in all");
            assert_eq!(clock.steps(), 0);
        }
    }

    #[test]
    fn the_clock_never_goes_back() {
        let seed = 0x00c1_0c4b;
        let mut random = fastrand::Rng::with_seed(seed);
        let (time, clock) = manual(StepPolicy::Adopt);
        let mut last = clock.now();
        for step in 0..20_000 {
            match random.u8(..) {
                0..=9 => time.step_wall_ms(random.i64(-5_000..5_000)),
                10 => time.step_wall_ms(random.i64(-100_000_000..100_000_000)),
                11 => drop(clock.adopt()),
                _ => time.advance(Duration::from_micros(random.u64(0..5_000))),
            }
            let now = clock.now();
            assert!(now >= last, "seed {seed:#x}, step {step}: {now} after {last}");
            last = now;
        }
    }

    #[test]
    fn suspend_counts_as_elapsed_time() {
        let (time, clock) = manual(StepPolicy::Report);
        time.advance_ms(3_600_000);
        assert_eq!(since_start(&clock), 3_600_000);
        assert_eq!(clock.steps(), 0, "both clocks have counted it");
    }

    #[test]
    fn a_forward_step_is_adopted_on_request_and_by_policy() {
        let (time, clock) = manual(StepPolicy::Report);
        time.step_wall_ms(60_000);
        assert_eq!(clock.adopt(), Ok(60_000));
        assert_eq!((since_start(&clock), clock.offset_ms(), clock.is_stepped()), (60_000, 0, false));

        let (time, clock) = manual(StepPolicy::Adopt);
        time.step_wall_ms(60_000);
        assert_eq!((since_start(&clock), clock.steps(), clock.is_stepped()), (60_000, 1, false));
    }

    #[test]
    fn a_backward_step_cannot_be_adopted() {
        let (time, clock) = manual(StepPolicy::Adopt);
        time.advance_ms(5);
        time.step_wall_ms(-60_000);
        assert_eq!(since_start(&clock), 5, "not by policy");
        assert_eq!(clock.adopt(), Err(WouldGoBack { behind_ms: 60_000 }));
        assert_eq!((since_start(&clock), clock.is_stepped()), (5, true));
    }

    #[test]
    fn a_sleep_ends_exactly_at_its_instant_and_is_capped() {
        let (time, clock) = manual(StepPolicy::Report);
        time.advance(Duration::from_micros(300));
        let at = |ms| Some(Timestamp::from_millis(START + ms));
        assert_eq!(clock.sleep_until(at(1)), Duration::from_micros(700));
        assert_eq!(clock.sleep_until(at(0)), Duration::ZERO);
        assert_eq!(clock.sleep_until(at(501)), MAX_SLEEP);
        assert_eq!(clock.sleep_until(Some(Timestamp::MAX)), MAX_SLEEP);
        assert_eq!(clock.sleep_until(None), MAX_SLEEP);
    }

    #[test]
    fn clocks_that_could_not_be_read_together_are_not_compared() {
        struct StoppedBetween(ManualTime);
        impl RawTime for StoppedBetween {
            fn elapsed(&self) -> Duration {
                self.0.elapsed()
            }
            fn wall(&self) -> Duration {
                self.0.advance_ms(60_000);
                self.0.wall()
            }
        }
        let time = ManualTime::new(Timestamp::from_millis(START));
        let clock = Clock::over(Box::new(StoppedBetween(time)), StepPolicy::Report);
        assert_eq!(clock.steps(), 0);
        assert_eq!(clock.steps(), 0);
    }

    #[test]
    fn the_system_clocks_agree_with_each_other() {
        let clock = Clock::system(StepPolicy::Report);
        let before = wall_now();
        let now = clock.now();
        let watch = Stopwatch::start();
        assert!(now.plus(1_000) >= before, "{now} and {before}");
        assert!(before.plus(10_000) >= now, "{now} and {before}");
        assert!(watch.elapsed_us() >= watch.elapsed_ms());
    }
}

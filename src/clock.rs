//! The broker's clock, and the only reader of time.
//!
//! The broker lives by one clock: the wall clock as it was at the start, plus the time since then by
//! `CLOCK_BOOTTIME`, which counts suspend and cannot be set. So a wall clock that is set forward fires nothing
//! early, one that is set back makes nothing late, and the clock of a client does not matter at all.
//!
//! The two differ a little in the long run, so a small difference is worked off, by at most 500 parts per
//! million of the time that passes: the clock never goes back and is never noticeably fast or slow. A larger
//! difference is a *step*: somebody or something set the wall clock. It is reported (a warning, a counter, the
//! offset) and not followed, until an operator adopts it or the broker restarts. Even then the clock does not go
//! back: it stands still until a wall clock that is a little behind has caught up.
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

/// A wall clock that is further behind is not followed: while the clock stands still nothing falls due, no lease ends
/// and no waiting call times out.
pub const MAX_HOLD: Duration = Duration::from_mins(1);

/// An offset that differs by more from the expected one is another offset.
pub const OFFSET_TOLERANCE: Duration = Duration::from_secs(1);

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
    /// Report it and follow it if it leads forward; one that leads back is reported only.
    Adopt,
}

/// What the clock shows, and how it relates to the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockState {
    /// The present instant.
    pub now: Timestamp,
    /// Wall clock minus broker's clock, milliseconds. Positive: the wall clock is ahead.
    pub offset_ms: i64,
    /// The offset is small and being worked off.
    pub is_slewing: bool,
    /// The offset is a step that was not followed.
    pub is_stepped: bool,
    /// How much longer the clock stands still, until the wall clock has caught up, milliseconds.
    pub held_ms: u64,
    /// Steps noticed since the start.
    pub steps: u64,
    /// What is done about a step.
    pub policy: StepPolicy,
}

/// What following the wall clock has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The clock before.
    pub before: ClockState,
    /// The clock after.
    pub after: ClockState,
}

/// Why the wall clock is not followed; nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// The offset is not the one that the operator has seen.
    #[error(
        "the wall clock is {offset_ms} ms ahead of the broker's clock, not {expected_ms} ms as expected; look again"
    )]
    OffsetChanged {
        /// What was expected, milliseconds; negative: behind.
        expected_ms: i64,
        /// What it is, milliseconds.
        offset_ms: i64,
    },
    /// The clock does not go back within a run, and would have to stand still for too long.
    #[error(
        "the wall clock is {behind_ms} ms behind the broker's clock, which never goes back and stands still for at most \
         {max_ms} ms; restart the broker to follow it"
    )]
    TooFarBehind {
        /// By how much the wall clock is behind, milliseconds.
        behind_ms: u64,
        /// [`MAX_HOLD`].
        max_ms: u64,
    },
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
    /// The time stands still for so many more nanoseconds.
    hold_ns: i128,
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
        let reading = Reading { now_ns, elapsed, offset_ns: 0, hold_ns: 0, step_ns: None, steps: 0 };
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
        let reading = self.read();
        let wait_ns = i128::from(instant.as_millis()) * NANOS_PER_MILLI - reading.now_ns;
        let wait_ns = if wait_ns > 0 { wait_ns + reading.hold_ns } else { 0 };
        u64::try_from(wait_ns).map_or(MAX_SLEEP, |ns| Duration::from_nanos(ns).min(MAX_SLEEP))
    }

    /// Wall clock minus broker's clock, milliseconds. Positive: the wall clock is ahead.
    pub fn offset_ms(&self) -> i64 {
        self.state().offset_ms
    }

    /// Steps of the wall clock noticed since the start.
    pub fn steps(&self) -> u64 {
        self.read().steps
    }

    /// True while the wall clock differs by a step that was not followed.
    pub fn is_stepped(&self) -> bool {
        self.read().step_ns.is_some()
    }

    /// What the clock shows, and how it relates to the wall clock, at one moment.
    pub fn state(&self) -> ClockState {
        self.read().state(self.shared.policy)
    }

    /// Follows the wall clock. If that is ahead, the clock is set forward to it. If it is behind, by [`MAX_HOLD`] at
    /// most, the clock stands still until the wall clock has caught up. `expected_offset_ms`, if given, must be the
    /// present offset to within [`OFFSET_TOLERANCE`].
    ///
    /// # Errors
    /// [`AdoptError`]; nothing changes.
    pub fn adopt(&self, expected_offset_ms: Option<i64>) -> Result<Adoption, AdoptError> {
        let mut reading = self.read();
        let before = reading.state(self.shared.policy);
        if let Some(expected_ms) = expected_offset_ms
            && i128::from(before.offset_ms).abs_diff(expected_ms.into()) > OFFSET_TOLERANCE.as_millis()
        {
            return Err(AdoptError::OffsetChanged { expected_ms, offset_ms: before.offset_ms });
        }
        let max_ns = nanos(MAX_HOLD);
        if -reading.offset_ns > max_ns {
            return Err(AdoptError::TooFarBehind { behind_ms: millis(-reading.offset_ns), max_ms: millis(max_ns) });
        }
        reading.follow();
        let after = reading.state(self.shared.policy);
        let (offset_ms, held_ms) = (before.offset_ms, after.held_ms);
        tracing::warn!(offset_ms, held_ms, "the broker's clock follows the wall clock, as an operator asked");
        Ok(Adoption { before, after })
    }

    fn read(&self) -> MutexGuard<'_, Reading> {
        let mut reading = self.shared.reading.lock().expect("nothing panics while it reads the clock");
        let raw = &self.shared.raw;
        let (before, wall, after) = (raw.elapsed(), raw.wall(), raw.elapsed());
        // The process may be stopped between the two reads; then the difference means nothing.
        let comparable = after.saturating_sub(before) <= MAX_UNCERTAINTY;
        reading.advance(before, comparable.then_some(wall));
        if reading.judge_step() && self.shared.policy == StepPolicy::Adopt && reading.offset_ns > 0 {
            let by_ms = millis(reading.offset_ns);
            reading.follow();
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
        let held_ns = passed_ns.min(self.hold_ns);
        self.hold_ns -= held_ns;
        self.now_ns += passed_ns - held_ns;
        let Some(wall) = wall else { return };
        self.offset_ns = nanos(wall) - self.now_ns;
        if self.hold_ns == 0 && !is_step(self.offset_ns) {
            let most = (passed_ns - held_ns) / SLEW_DIVISOR;
            let slew = self.offset_ns.clamp(-most, most);
            self.now_ns += slew;
            self.offset_ns -= slew;
        }
    }

    /// The offset that standing still will not make good.
    fn lasting_ns(&self) -> i128 {
        self.offset_ns + self.hold_ns
    }

    fn state(&self, policy: StepPolicy) -> ClockState {
        let offset_ms = self.offset_ns / NANOS_PER_MILLI;
        let is_stepped = self.step_ns.is_some();
        ClockState {
            now: Timestamp::from_millis(millis(self.now_ns)),
            offset_ms: i64::try_from(offset_ms).unwrap_or(if offset_ms < 0 { i64::MIN } else { i64::MAX }),
            is_slewing: !is_stepped && self.hold_ns == 0 && offset_ms != 0,
            is_stepped,
            held_ms: millis(self.hold_ns),
            steps: self.steps,
            policy,
        }
    }

    /// Reports a step once. Returns true if there is a new one.
    fn judge_step(&mut self) -> bool {
        if !is_step(self.lasting_ns()) {
            if self.step_ns.take().is_some() {
                tracing::info!("the wall clock is back in step with the broker's clock");
            }
            return false;
        }
        if self.step_ns.is_some_and(|reported| !is_step(self.lasting_ns() - reported)) {
            return false;
        }
        self.step_ns = Some(self.lasting_ns());
        self.steps += 1;
        let ahead_s = self.lasting_ns() / 1_000_000_000;
        tracing::warn!(ahead_s, "the wall clock was set; the broker's clock goes on as before");
        true
    }

    /// Jumps forward to the wall clock, or stands still until it has caught up.
    fn follow(&mut self) {
        let by_ns = self.offset_ns.max(0);
        self.now_ns += by_ns;
        self.offset_ns -= by_ns;
        self.hold_ns = -self.offset_ns;
        self.step_ns = None;
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
                11 => drop(clock.adopt(None)),
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
        let Adoption { before, after } = clock.adopt(None).expect("forward");
        assert_eq!(
            (before.offset_ms, before.is_stepped, before.now.since(Timestamp::from_millis(START))),
            (60_000, true, 0)
        );
        assert_eq!((after.offset_ms, after.is_stepped, after.held_ms, after.steps), (0, false, 0, 1));
        assert_eq!((since_start(&clock), clock.offset_ms(), clock.is_stepped()), (60_000, 0, false));

        let (time, clock) = manual(StepPolicy::Adopt);
        time.step_wall_ms(60_000);
        assert_eq!((since_start(&clock), clock.steps(), clock.is_stepped()), (60_000, 1, false));
    }

    #[test]
    fn a_small_step_back_is_adopted_by_standing_still_and_a_large_one_is_refused() {
        let (time, clock) = manual(StepPolicy::Adopt);
        time.advance_ms(5);
        time.step_wall_ms(-60_000);
        assert_eq!((since_start(&clock), clock.is_stepped()), (5, true), "not by policy");
        let after = clock.adopt(None).expect("within the bound").after;
        assert_eq!(
            (after.held_ms, after.offset_ms, after.is_stepped, after.is_slewing),
            (60_000, -60_000, false, false)
        );
        assert_eq!(clock.sleep_until(Some(Timestamp::from_millis(START + 5))), Duration::ZERO);
        time.advance_ms(59_999);
        assert_eq!((since_start(&clock), clock.state().held_ms), (5, 1));
        assert_eq!(clock.sleep_until(Some(Timestamp::from_millis(START + 6))), Duration::from_millis(2));
        time.advance_ms(11);
        assert_eq!((since_start(&clock), clock.offset_ms(), clock.steps()), (15, 0, 1), "then it goes on in step");

        time.step_wall_ms(-60_001);
        let refused = AdoptError::TooFarBehind { behind_ms: 60_001, max_ms: 60_000 };
        assert_eq!(clock.adopt(None), Err(refused));
        assert_eq!((since_start(&clock), clock.is_stepped()), (15, true));
    }

    #[test]
    fn a_step_forward_while_the_clock_stands_still_is_a_step_again() {
        let (time, clock) = manual(StepPolicy::Report);
        time.step_wall_ms(-30_000);
        clock.adopt(None).expect("within the bound");
        time.advance_ms(10_000);
        time.step_wall_ms(50_000);
        let state = clock.state();
        assert_eq!((state.offset_ms, state.held_ms, state.is_stepped, state.steps), (30_000, 20_000, true, 2));
        let after = clock.adopt(None).expect("forward").after;
        assert_eq!((after.offset_ms, after.held_ms, since_start(&clock)), (0, 0, 30_000));
    }

    #[test]
    fn the_wall_clock_is_followed_only_if_it_is_where_the_operator_saw_it() {
        let (time, clock) = manual(StepPolicy::Report);
        time.step_wall_ms(3_600_000);
        for expected_ms in [0, -3_600_000, 3_598_999, 3_601_001, i64::MIN, i64::MAX] {
            let changed = AdoptError::OffsetChanged { expected_ms, offset_ms: 3_600_000 };
            assert_eq!(clock.adopt(Some(expected_ms)), Err(changed));
        }
        assert_eq!(since_start(&clock), 0);
        assert!(clock.adopt(Some(3_599_000)).is_ok());
        assert_eq!(since_start(&clock), 3_600_000);
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

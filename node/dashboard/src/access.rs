//! Who may read the dashboard (rule W6).
//!
//! Purpose: judges one request from its token, cookie and peer, and nothing else. Owner: every
//! connection of the dashboard shares one `Access`; it outlives restarts of the dashboard, so that
//! a browser stays logged in. Must not know: HTTP routes, pages.
//!
//! Invariants: tokens and sessions are compared in constant time; at most [`MAX_SESSIONS`]
//! sessions and [`MAX_PEERS`] peers are remembered, the oldest go first; a wrong token costs its
//! peer one of [`MAX_FAILURES`] attempts a minute, a missing or outdated one nothing.

use std::collections::VecDeque;
use std::fmt;
use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::TryRngCore;
use tokio::time::Instant;

/// Longest life of a session.
pub(crate) const SESSION_LIFE: Duration = Duration::from_secs(12 * 3600);
/// Most sessions at a time.
const MAX_SESSIONS: usize = 64;
/// Wrong tokens one peer may send in [`WINDOW`].
const MAX_FAILURES: u32 = 10;
/// Time after which wrong tokens are forgotten.
const WINDOW: Duration = Duration::from_secs(60);
/// Most peers whose wrong tokens are counted.
const MAX_PEERS: usize = 1024;
/// Longest token in bytes.
const MAX_TOKEN_BYTES: usize = 256;

/// Why there is no `Access`.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The configured token cannot be sent in a header.
    #[error("the dashboard token must be 1 to {MAX_TOKEN_BYTES} visible ASCII characters")]
    Token,
    /// The kernel gave no random bytes for a token.
    #[error("no random bytes for a dashboard token")]
    Random(#[source] rand::rand_core::OsError),
}

/// The credentials of the dashboard. Clones share sessions and counts.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    token: String,
    cookie: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Oldest first.
    sessions: VecDeque<Session>,
    /// Oldest window first.
    peers: VecDeque<Peer>,
}

struct Session {
    id: String,
    ends: Instant,
}

struct Peer {
    address: IpAddr,
    failures: u32,
    window_ends: Instant,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// What a request shows of itself.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Credentials<'a> {
    /// After `Authorization: Bearer`.
    pub(crate) bearer: Option<&'a str>,
    /// After `/?token=`.
    pub(crate) link: Option<&'a str>,
    /// The whole `Cookie` header.
    pub(crate) cookies: Option<&'a str>,
}

/// What the request gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It may read.
    Granted,
    /// It followed the link: set this cookie and send it on to `/`.
    LoggedIn {
        /// Value of `Set-Cookie`.
        cookie: String,
    },
    /// It showed nothing that is still valid.
    Missing,
    /// Its token is wrong.
    Wrong,
    /// Its peer has sent too many wrong tokens.
    Limited {
        /// Seconds until the next try.
        wait_s: u64,
    },
}

impl Access {
    /// Access by a configured token.
    ///
    /// # Errors
    /// [`AccessError::Token`] if it is empty, too long or not visible ASCII; and
    /// [`AccessError::Random`] if the system has no random bytes.
    pub fn with_token(token: &str) -> Result<Access, AccessError> {
        let visible = token.bytes().all(|b| b.is_ascii_graphic());
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES || !visible {
            return Err(AccessError::Token);
        }
        // Cookies ignore ports: without a name of its own, two nodes behind loopback ports would
        // log each other's readers out.
        let cookie = format!("hamlet_{}", &random_hex()?[..8]);
        Ok(Access(Arc::new(Inner { token: token.to_owned(), cookie, state: Mutex::default() })))
    }

    /// Access by 128 random bits.
    ///
    /// # Errors
    /// [`AccessError::Random`] if the system has no random bytes.
    pub fn random() -> Result<Access, AccessError> {
        Access::with_token(&random_hex()?)
    }

    /// The token, for the console and the host's own channel.
    pub fn token(&self) -> &str {
        &self.0.token
    }

    /// Judges a request. A valid session counts even where a neighbour behind the same address
    /// has used up its attempts.
    pub(crate) fn judge(&self, peer: IpAddr, shown: Credentials<'_>) -> Judgement {
        let now = Instant::now();
        let mut state = self.0.state.lock();
        if shown.link.is_none() && self.session_is_valid(&state, shown.cookies, now) {
            return Judgement::Granted;
        }
        let Some(token) = shown.bearer.or(shown.link) else { return Judgement::Missing };
        if let Some(wait_s) = state.limited(peer, now) {
            return Judgement::Limited { wait_s };
        }
        if !same(token, &self.0.token) {
            state.failed(peer, now);
            return Judgement::Wrong;
        }
        if shown.bearer.is_some() {
            return Judgement::Granted;
        }
        match random_hex() {
            Ok(id) => Judgement::LoggedIn { cookie: self.open_session(&mut state, id, now) },
            Err(_) => Judgement::Missing,
        }
    }

    fn session_is_valid(&self, state: &State, cookies: Option<&str>, now: Instant) -> bool {
        let Some(cookies) = cookies else { return false };
        let shown = cookies
            .split(';')
            .filter_map(|pair| pair.trim().split_once('='))
            .find(|(name, _)| *name == self.0.cookie);
        let Some((_, id)) = shown else { return false };
        // All are compared, so that time does not tell which one it nearly was.
        state.sessions.iter().fold(false, |found, s| found | (same(id, &s.id) & (now < s.ends)))
    }

    fn open_session(&self, state: &mut State, id: String, now: Instant) -> String {
        state.sessions.retain(|s| now < s.ends);
        while state.sessions.len() >= MAX_SESSIONS {
            state.sessions.pop_front();
        }
        let cookie = format!(
            "{}={id}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict",
            self.0.cookie,
            SESSION_LIFE.as_secs()
        );
        state.sessions.push_back(Session { id, ends: now + SESSION_LIFE });
        cookie
    }
}

impl State {
    fn limited(&self, peer: IpAddr, now: Instant) -> Option<u64> {
        let peer = network(peer);
        let known = self.peers.iter().find(|p| p.address == peer)?;
        let left = known.window_ends.saturating_duration_since(now);
        let limited = known.failures >= MAX_FAILURES && !left.is_zero();
        limited.then(|| left.as_secs_f64().ceil() as u64)
    }

    fn failed(&mut self, peer: IpAddr, now: Instant) {
        let peer = network(peer);
        self.peers.retain(|p| now < p.window_ends);
        if let Some(known) = self.peers.iter_mut().find(|p| p.address == peer) {
            known.failures += 1;
            return;
        }
        while self.peers.len() >= MAX_PEERS {
            self.peers.pop_front();
        }
        self.peers.push_back(Peer { address: peer, failures: 1, window_ends: now + WINDOW });
    }
}

/// One peer may own a whole IPv6 /64; IPv4 in IPv6 is IPv4.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Compares in a time that depends on the length of what was shown only.
fn same(shown: &str, secret: &str) -> bool {
    let secret = secret.as_bytes();
    let mut differ = u8::from(shown.len() != secret.len());
    for (i, byte) in shown.bytes().enumerate() {
        let other = secret.get(i % secret.len().max(1)).copied().unwrap_or(0);
        differ = black_box(differ | (byte ^ other));
    }
    differ == 0
}

fn random_hex() -> Result<String, AccessError> {
    let mut bytes = [0; 16];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(AccessError::Random)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn access() -> Access {
        Access::with_token("s3cret").unwrap()
    }

    fn bearer(token: &str) -> Credentials<'_> {
        Credentials { bearer: Some(token), ..Credentials::default() }
    }

    fn log_in(access: &Access) -> String {
        let shown = Credentials { link: Some("s3cret"), ..Credentials::default() };
        match access.judge(PEER, shown) {
            Judgement::LoggedIn { cookie } => cookie,
            other => panic!("{other:?}"),
        }
    }

    fn cookie(header: &str) -> Credentials<'_> {
        Credentials { cookies: Some(header), ..Credentials::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn w6_only_the_exact_token_opens() {
        let access = access();
        assert_eq!(access.judge(PEER, bearer("s3cret")), Judgement::Granted);
        for wrong in ["", "s3cre", "s3crets", "S3CRET", "s3cret s3cret"] {
            assert_eq!(access.judge(PEER, bearer(wrong)), Judgement::Wrong, "{wrong:?}");
        }
        assert_eq!(access.judge(PEER, Credentials::default()), Judgement::Missing);
    }

    #[tokio::test(start_paused = true)]
    async fn w6_the_link_opens_a_session_of_12_hours() {
        let access = access();
        let set = log_in(&access);
        assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
        assert!(set.contains("Max-Age=43200"), "{set}");
        let pair = set.split(';').next().unwrap();
        assert_eq!(access.judge(PEER, cookie(&format!("x=y; {pair}"))), Judgement::Granted);
        tokio::time::advance(SESSION_LIFE).await;
        assert_eq!(access.judge(PEER, cookie(pair)), Judgement::Missing);
    }

    #[tokio::test(start_paused = true)]
    async fn w6_the_65th_session_ends_the_oldest() {
        let access = access();
        let sets: Vec<_> = (0..=MAX_SESSIONS).map(|_| log_in(&access)).collect();
        let pair = |i: usize| sets[i].split(';').next().unwrap().to_owned();
        assert_eq!(access.judge(PEER, cookie(&pair(0))), Judgement::Missing);
        assert_eq!(access.judge(PEER, cookie(&pair(1))), Judgement::Granted);
        assert_eq!(access.judge(PEER, cookie(&pair(MAX_SESSIONS))), Judgement::Granted);
    }

    #[tokio::test(start_paused = true)]
    async fn w6_ten_wrong_tokens_shut_out_the_peer_for_a_minute_but_not_its_sessions() {
        let access = access();
        let set = log_in(&access);
        let pair = set.split(';').next().unwrap();
        for _ in 0..MAX_FAILURES {
            assert_eq!(access.judge(PEER, bearer("guess")), Judgement::Wrong);
        }
        assert!(matches!(access.judge(PEER, bearer("s3cret")), Judgement::Limited { wait_s: 60 }));
        assert_eq!(access.judge(PEER, cookie(pair)), Judgement::Granted);
        let other = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(access.judge(other, bearer("s3cret")), Judgement::Granted);
        tokio::time::advance(WINDOW).await;
        assert_eq!(access.judge(PEER, bearer("s3cret")), Judgement::Granted);
    }

    #[tokio::test(start_paused = true)]
    async fn w6_stale_cookies_are_no_attempts() {
        let access = access();
        for _ in 0..100 {
            assert_eq!(access.judge(PEER, cookie("hamlet_x=0")), Judgement::Missing);
        }
        assert_eq!(access.judge(PEER, bearer("s3cret")), Judgement::Granted);
    }

    #[test]
    fn w6_addresses_of_one_network_are_one_peer() {
        let ip = |text: &str| network(text.parse().unwrap());
        assert_eq!(ip("2001:db8::1"), ip("2001:db8::2"));
        assert_ne!(ip("2001:db8::1"), ip("2001:db8:0:1::1"));
        assert_eq!(ip("::ffff:10.0.0.1"), ip("10.0.0.1"));
    }

    #[test]
    fn w6_tokens_that_no_header_can_carry_are_refused() {
        for bad in ["", "a b", "tökên", "a\n", &"x".repeat(257)] {
            assert!(matches!(Access::with_token(bad), Err(AccessError::Token)), "{bad:?}");
        }
        let random = Access::random().unwrap();
        assert_eq!(random.token().len(), 32);
        assert_ne!(random.token(), Access::random().unwrap().token());
    }
}

//! Requests that wait for their client: Exec, Attach and PortForward answer with a URL, whose token is
//! good for one connection and one minute. Owns the waiting requests. Called by the RPC handlers and by
//! `streaming::http`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base64::Engine;
use gantry_proto::cri;

use crate::error::token::Error;
use gantry_base::mutex::lock;

const TTL: Duration = Duration::from_secs(60);
const MAX_WAITING: usize = 1000;

/// What a client may come for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Waiting {
    Exec(cri::ExecRequest),
    Attach(cri::AttachRequest),
    PortForward(cri::PortForwardRequest),
}

#[derive(Debug, Default)]
pub(crate) struct Tokens {
    waiting: Mutex<BTreeMap<String, (Waiting, Instant)>>,
}

impl Tokens {
    /// A token for `request`.
    pub(crate) fn insert(&self, request: Waiting, now: Instant) -> Result<String, Error> {
        let mut raw = [0u8; 12];
        rustix::rand::getrandom(&mut raw, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::Randomness(error.into()))?;
        let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(raw);
        let mut waiting = lock(&self.waiting);
        waiting.retain(|_, (_, until)| *until > now);
        if waiting.len() >= MAX_WAITING {
            return Err(Error::TooMany);
        }
        waiting.insert(token.clone(), (request, now + TTL));
        Ok(token)
    }

    /// The request of a token, which is used up by it.
    pub(crate) fn take(&self, token: &str, now: Instant) -> Option<Waiting> {
        let (request, until) = lock(&self.waiting).remove(token)?;
        (until > now).then_some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Waiting {
        Waiting::Exec(cri::ExecRequest { container_id: "c".into(), ..Default::default() })
    }

    #[test]
    fn a_token_is_good_once_and_for_a_minute() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let token = tokens.insert(request(), now).unwrap();
        assert_eq!(tokens.take(&token, now), Some(request()));
        assert_eq!(tokens.take(&token, now), None);
        let token = tokens.insert(request(), now).unwrap();
        assert_eq!(tokens.take(&token, now + TTL), None);
    }

    #[test]
    fn there_is_room_for_a_thousand_and_old_ones_make_room() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        for _ in 0..MAX_WAITING {
            tokens.insert(request(), now).unwrap();
        }
        assert!(matches!(tokens.insert(request(), now), Err(Error::TooMany)));
        assert!(tokens.insert(request(), now + TTL).is_ok());
    }
}

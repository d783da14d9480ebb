//! Chance, for jitter and names that nobody else has. Owns the call to the kernel; never seeds
//! anything of its own. Called by loops that must not march in step with other nodes'.

/// From 0 up to, but not, 1. Without a source of randomness the middle: jitter is no promise.
#[must_use]
pub fn fraction() -> f64 {
    let mut bytes = [0; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(read) if read == bytes.len() => f64::from(u32::from_ne_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Ok(_) | Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn chance_stays_within_its_bounds_and_varies() {
        let all: Vec<f64> = (0..64).map(|_| super::fraction()).collect();
        assert!(all.iter().all(|at| (0.0..1.0).contains(at)), "{all:?}");
        assert!(all.iter().any(|at| Some(at) != all.first()), "{all:?}");
    }
}

//! Amounts of resources as the API prints them. Pure: owns the canonical forms; never reads a
//! machine. Called by [`super::compose`].

use gantry_model::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Bytes, with the largest binary suffix that divides them.
pub(super) fn bytes(value: i64) -> Quantity {
    Quantity(quantity::binary(value))
}

/// A plain number, with the largest decimal suffix that divides it.
pub(super) fn count(value: i64) -> Quantity {
    Quantity(quantity::plain(value))
}

/// Thousandths.
pub(super) fn milli(value: i64) -> Quantity {
    Quantity(quantity::format_divided(value, 1000, &["m", "", "k", "M", "G", "T", "P", "E"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_printed_as_upstream_does() {
        let text = |quantity: Quantity| quantity.0;
        assert_eq!(text(bytes(16_316_412 * 1024)), "16316412Ki");
        assert_eq!(text(bytes(1 << 30)), "1Gi");
        assert_eq!(text(bytes(242_541_353_378)), "242541353378");
        assert_eq!(text(bytes(0)), "0");
        assert_eq!(text(milli(2000)), "2");
        assert_eq!(text(milli(1500)), "1500m");
        assert_eq!(text(milli(0)), "0");
        assert_eq!(text(count(110)), "110");
        assert_eq!(text(count(2000)), "2k");
    }
}

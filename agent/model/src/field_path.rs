//! Paths of fields, as the downward API names them. Pure: owns their parts; never reads a field. Called by the manifest
//! converter, which checks them, and by those who look them up.

/// `metadata.labels['x']` as (`metadata.labels`, `x`).
#[must_use]
pub fn subscript(path: &str) -> Option<(&str, &str)> {
    let (of, key) = path.strip_suffix("']")?.split_once("['")?;
    (!of.is_empty()).then_some((of, key))
}

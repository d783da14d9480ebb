//! The layers of an image as overlayfs may see them. Pure. Called by `store` and `pull`.

use super::record::LayerRecord;

/// Layers topmost first: empty ones dropped, of equal ones only the topmost kept (overlayfs refuses
/// a folder that is named twice with ELOOP; each path that the lower copy touches is touched in the
/// same way by the upper one), and nothing below a layer that hides everything. One empty layer is
/// kept when there is nothing else, since an overlay needs a lower folder.
///
/// # Errors
/// The diff id that `record` does not know.
pub(crate) fn chain<'a>(
    diff_ids: &'a [String],
    record: impl Fn(&str) -> Option<&'a LayerRecord>,
) -> Result<Vec<(&'a str, &'a LayerRecord)>, String> {
    let known = diff_ids.iter().rev().map(|key| Ok((key.as_str(), record(key).ok_or_else(|| key.clone())?)));
    let known: Vec<(&str, &LayerRecord)> = known.collect::<Result<_, String>>()?;
    let mut chain: Vec<(&str, &LayerRecord)> = Vec::new();
    for (key, layer) in &known {
        if !layer.empty && !chain.iter().any(|(own, _)| own == key) {
            chain.push((key, layer));
        }
        if layer.opaque_root {
            break;
        }
    }
    if chain.is_empty() {
        chain.extend(known.first());
    }
    Ok(chain)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn check(diff_ids: &[&str], want: &[&str]) {
        let layer = |key: &str| LayerRecord {
            folder: format!("f-{key}"),
            blob: String::new(),
            compressed: 1,
            unpacked: 1,
            implied: Vec::new(),
            implied_weight: 0,
            empty: key.starts_with("empty"),
            opaque_root: key.starts_with("opaque"),
            exact: true,
        };
        let records: HashMap<String, LayerRecord> =
            diff_ids.iter().map(|key| ((*key).to_owned(), layer(key))).collect();
        let ids: Vec<String> = diff_ids.iter().map(|key| (*key).to_owned()).collect();
        let chain = chain(&ids, |key| records.get(key)).unwrap();
        assert_eq!(chain.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), want);
    }

    #[test]
    fn topmost_first() {
        check(&["a", "b", "c"], &["c", "b", "a"]);
    }

    #[test]
    fn rt_1_2_empty_layers_go_and_of_equal_ones_the_topmost_stays() {
        check(&["base", "a", "b", "a"], &["a", "b", "base"]);
        check(&["base", "empty", "a", "empty"], &["a", "base"]);
        check(&["empty1", "empty2"], &["empty2"]);
        check(&[], &[]);
    }

    #[test]
    fn nothing_shows_from_below_an_opaque_root() {
        check(&["a", "opaque", "b"], &["b", "opaque"]);
    }

    #[test]
    fn an_unknown_layer_is_named() {
        assert_eq!(chain(&["x".to_owned()], |_| None), Err("x".to_owned()));
    }
}

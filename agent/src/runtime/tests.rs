//! The words of failures.

use gantry_model::failure::FailureKind;

use super::*;

#[test]
fn an_answer_is_told_as_go_prints_it_or_without_its_code() {
    let of = |kind| Error::Image { image: "web".into(), source: Failure::new(kind, "no such thing") };
    let (known, unknown) = (of(FailureKind::NotFound), of(FailureKind::Failed));
    assert_eq!(known.in_go(), "rpc error: code = NotFound desc = no such thing");
    assert_eq!(unknown.in_go(), "rpc error: code = Unknown desc = no such thing");
    assert_eq!((known.of_pull(), unknown.of_pull()), (known.in_go(), "no such thing".to_owned()));
    assert_eq!(known.detail(), "no such thing");
    let silent = Failure { code: "", ..Failure::new(FailureKind::Unavailable, "connection refused") };
    let silent = Error::Connect { endpoint: "unix:///x".into(), source: silent };
    assert_eq!((silent.in_go(), silent.of_pull()), (silent.detail(), silent.detail()));
}

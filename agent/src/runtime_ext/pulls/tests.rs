//! The board of pulls, without a runtime.

use super::progress::LayerState;
use super::*;

fn layer(bytes: u64) -> Vec<Layer> {
    let state = LayerState::Downloading { since: 1, bytes };
    vec![Layer { digest: "sha256:a".into(), size: 10, state }]
}

#[tokio::test]
async fn a_pull_is_there_from_its_beginning_to_its_end() {
    let pulls = Pulls::default();
    assert_eq!(pulls.progress("reg.io/a"), None);
    let pull = pulls.begin("reg.io/a:latest");
    assert_eq!(pulls.progress("reg.io/a").unwrap().stage, "resolving");
    let number = pulls.watch().borrow().open().next().unwrap().number;
    pulls.tell(number, layer(4), false);
    // However it is written.
    assert_eq!(pulls.progress("reg.io/a").unwrap().words(), "0 of 1 layers, 4B of 10B");
    assert_eq!(pulls.progress("reg.io/b"), None);
    drop(pull);
    assert_eq!(pulls.progress("reg.io/a"), None);
    let board = pulls.watch();
    assert_eq!(board.borrow().open().next().unwrap().state, State::Ended);
    let done = LayerState::Downloaded { since: None, at: i64::MAX };
    pulls.tell(number, vec![Layer { digest: "sha256:a".into(), size: 10, state: done }], true);
    assert_eq!(pulls.stages("reg.io/a").await.len(), 1);
    assert_eq!(pulls.stages("reg.io/a").await, [], "told once");
}

#[tokio::test(start_paused = true)]
async fn stages_wait_for_the_last_look_and_not_for_ever() {
    let pulls = Pulls::default();
    drop(pulls.begin("reg.io/a"));
    let before = Instant::now();
    assert_eq!(pulls.stages("reg.io/a").await, []);
    assert_eq!(before.elapsed(), PATIENCE);
    drop(pulls.begin("reg.io/a"));
    let looking = tokio::spawn({
        let pulls = pulls.clone();
        async move {
            let number = pulls.watch().borrow().open().next().unwrap().number;
            pulls.tell(number, vec![Layer { state: LayerState::Present, ..layer(0).remove(0) }], true);
        }
    });
    let stages = pulls.stages("reg.io/a").await;
    assert_eq!(stages.first().unwrap().name, "layer.0.present");
    looking.await.unwrap();
}

#[test]
fn what_nobody_asks_for_is_bounded_and_pulls_under_way_stay() {
    let pulls = Pulls::default();
    let stays = pulls.begin("reg.io/first");
    (0..200).for_each(|n| drop(pulls.begin(&format!("reg.io/a:{n}"))));
    assert_eq!(pulls.watch().borrow().pulls.len(), MOST_ENDED + 1);
    assert!(pulls.progress("reg.io/first").is_some());
    drop(stays);
    assert_eq!(pulls.watch().borrow().pulls.len(), MOST_ENDED);
    assert_eq!(pulls.progress("reg.io/first"), None);
}

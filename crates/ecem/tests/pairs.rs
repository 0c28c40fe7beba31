//! The pair table against a model that searches a list.

use ecem::{AddError, Event, EventKind, PairId, PairState, PairTable, Readiness};
use proptest::prelude::*;

const KINDS: [EventKind; 3] =
    [EventKind::DiskReadResponse, EventKind::NetworkWriteRequest, EventKind::ArrivalOfAck];
const MAX: usize = 12;

#[derive(Clone, Debug)]
enum Step {
    Add(Event, Event),
    Remove(usize),
    RemoveObject(i32),
    SetPre(usize, Readiness),
    SetPost(usize, Readiness),
    Set(Event, Readiness),
}

fn event() -> impl Strategy<Value = Event> {
    (0..5, 0..KINDS.len()).prop_map(|(object, kind)| Event::new(object, KINDS[kind]))
}

fn readiness() -> impl Strategy<Value = Readiness> {
    prop_oneof![Just(Readiness::Wait), Just(Readiness::Ready)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (event(), event()).prop_map(|(pre, post)| Step::Add(pre, post)),
        2 => (0..40usize).prop_map(Step::Remove),
        1 => (0..5).prop_map(Step::RemoveObject),
        1 => (0..40usize, readiness()).prop_map(|(pair, to)| Step::SetPre(pair, to)),
        1 => (0..40usize, readiness()).prop_map(|(pair, to)| Step::SetPost(pair, to)),
        2 => (event(), readiness()).prop_map(|(event, to)| Step::Set(event, to)),
    ]
}

/// Pairs in the order in which they were added.
type Model = Vec<(PairId, Event, Event, PairState)>;

fn sorted(mut all: Vec<PairId>) -> Vec<PairId> {
    all.sort_by_key(|id| id.index());
    all
}

fn check(table: &PairTable, model: &Model, old: &[PairId]) {
    assert_eq!(table.len(), model.len());
    for (id, pre, post, state) in model {
        assert_eq!(table.find(*pre, *post), Some(*id));
        assert_eq!(table.events(*id), Some((*pre, *post)));
        assert_eq!(table.state(*id), Some(*state));
    }
    for id in old.iter().filter(|id| !model.iter().any(|(other, ..)| other == *id)) {
        assert_eq!(table.state(*id), None);
        assert_eq!(table.events(*id), None);
    }
    for object in 0..5 {
        let pre = model.iter().rev().filter(|(_, pre, ..)| pre.object == object);
        let post = model.iter().rev().filter(|(_, _, post, _)| post.object == object);
        assert_eq!(
            table.pairs_before(object).collect::<Vec<_>>(),
            pre.map(|(id, ..)| *id).collect::<Vec<_>>()
        );
        assert_eq!(
            table.pairs_after(object).collect::<Vec<_>>(),
            post.map(|(id, ..)| *id).collect::<Vec<_>>()
        );
    }
}

fn apply(table: &mut PairTable, model: &mut Model, old: &mut Vec<PairId>, step: Step) {
    match step {
        Step::Add(pre, post) => {
            let exists =
                model.iter().find(|(_, a, b, _)| (*a, *b) == (pre, post)).map(|(id, ..)| *id);
            match table.add(pre, post) {
                Ok(id) => {
                    assert!(pre != post && exists.is_none() && model.len() < MAX);
                    assert!(!old.contains(&id), "{id:?} was used before");
                    old.push(id);
                    model.push((id, pre, post, PairState::WW));
                }
                Err(AddError::SameEvent) => assert_eq!(pre, post),
                Err(AddError::Exists(id)) => assert_eq!(Some(id), exists),
                Err(AddError::Full(max)) => assert_eq!((max, model.len()), (MAX, MAX)),
                Err(other) => panic!("{other}"),
            }
        }
        Step::Remove(number) => {
            let Some(id) = old.get(number).copied() else { return };
            let place = model.iter().position(|(other, ..)| *other == id);
            let expected =
                place.map(|place| model.remove(place)).map(|(_, pre, post, _)| (pre, post));
            assert_eq!(table.remove(id), expected);
        }
        Step::RemoveObject(object) => {
            let removed: Vec<_> = std::iter::from_fn(|| table.remove_object(object)).collect();
            let gone = |(_, pre, post, _): &(_, Event, Event, _)| {
                pre.object == object || post.object == object
            };
            let expected = model.iter().filter(|pair| gone(pair)).map(|(id, ..)| *id).collect();
            assert_eq!(sorted(removed), sorted(expected));
            model.retain(|pair| !gone(pair));
        }
        Step::SetPre(number, to) | Step::SetPost(number, to) => {
            let Some(id) = old.get(number).copied() else { return };
            let is_pre = matches!(step, Step::SetPre(..));
            let entry = model.iter_mut().find(|(other, ..)| *other == id);
            let expected = entry.map(|(.., state)| {
                let (pre, post) = if is_pre { (to, state.post()) } else { (state.pre(), to) };
                (std::mem::replace(state, PairState::new(pre, post)), PairState::new(pre, post))
            });
            let changed = if is_pre { table.set_pre(id, to) } else { table.set_post(id, to) };
            assert_eq!(changed, expected);
        }
        Step::Set(event, to) => {
            let mut changed = Vec::new();
            table.set(event, to, |id, before, after| {
                assert_ne!(before, after);
                changed.push(id);
            });
            let mut expected = Vec::new();
            for (id, pre, post, state) in model {
                let before = *state;
                if *pre == event {
                    *state = PairState::new(to, state.post());
                }
                if *post == event {
                    *state = PairState::new(state.pre(), to);
                }
                expected.extend((*state != before).then_some(*id));
            }
            assert_eq!(sorted(changed), sorted(expected));
        }
    }
}

proptest! {
    #[test]
    fn table_equals_a_list_of_pairs(steps in prop::collection::vec(step(), 0..120)) {
        let mut table = PairTable::new(MAX);
        let (mut model, mut old) = (Model::new(), Vec::new());
        for step in steps {
            apply(&mut table, &mut model, &mut old, step);
            check(&table, &model, &old);
        }
    }
}

#[test]
fn a_hundred_thousand_pairs_fit_and_no_more() {
    let mut table = PairTable::new(100_000);
    let read = |file| Event::new(file, EventKind::DiskReadResponse);
    let write = |socket| Event::new(socket, EventKind::NetworkWriteRequest);
    // Each file is sent to ten sockets.
    for pair in 0..100_000 {
        table.add(read(pair / 10), write(1_000_000 + pair)).unwrap();
    }
    assert_eq!(table.add(read(-1), write(-1)), Err(AddError::Full(100_000)));
    assert_eq!(table.pairs_before(77).count(), 10);
    let mut ready = 0;
    for pair in 0..100_000 {
        table.set(write(1_000_000 + pair), Readiness::Ready, |_, _, after| {
            assert_eq!(after, PairState::WR);
            ready += 1;
        });
    }
    assert_eq!(ready, 100_000);
    for file in 0..10_000 {
        assert_eq!(std::iter::from_fn(|| table.remove_object(file)).count(), 10);
    }
    assert!(table.is_empty());
    assert!(table.add(read(-1), write(-1)).is_ok());
}

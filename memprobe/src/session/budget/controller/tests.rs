use super::*;

const STEP: Duration = Duration::from_millis(20);
const BUDGET: f64 = 0.01;

/// Shares of a program's time that each part of the detail costs while it is on.
#[derive(Clone, Copy)]
struct Program {
    shapes: f64,
    graph: f64,
    modules: f64,
    rest: f64,
}

impl Program {
    fn of(rest: f64) -> Self {
        Self {
            shapes: 0.0,
            graph: 0.0,
            modules: 0.0,
            rest,
        }
    }

    fn cost(self, level: CaptureLevel, elapsed: Duration) -> ProbeCost {
        let on = |share: f64, until: CaptureLevel| {
            elapsed.mul_f64(if level < until { share } else { 0.0 })
        };
        ProbeCost {
            shapes: on(self.shapes, CaptureLevel::WithoutShapes),
            graph: on(self.graph, CaptureLevel::WithoutGraph),
            rest: on(self.modules, CaptureLevel::WithoutModules)
                + on(self.rest, CaptureLevel::Paused),
        }
    }
}

fn controller() -> BudgetController {
    BudgetController::new(TimeShare::from_ratio(BUDGET), CaptureLevel::ALL)
}

/// Runs a program for some seconds. Returns the level and the cost of each step.
fn run(
    controller: &mut BudgetController,
    program: Program,
    seconds: u32,
) -> Vec<(CaptureLevel, Duration)> {
    let steps = (Duration::from_secs(1).as_millis() / STEP.as_millis()) as u32 * seconds;
    let mut all = Vec::new();
    for _ in 0..steps {
        let level = controller.level();
        let cost = program.cost(level, STEP);
        controller.step(STEP, cost);
        all.push((level, cost.total()));
    }
    all
}

fn last(steps: &[(CaptureLevel, Duration)]) -> Option<CaptureLevel> {
    steps.last().map(|(level, _)| *level)
}

/// Highest share of any ten seconds.
fn highest_share(steps: &[(CaptureLevel, Duration)]) -> f64 {
    let window = (10_000 / STEP.as_millis()) as usize;
    let sums = steps.windows(window).map(|steps| {
        let cost: Duration = steps.iter().map(|(_, cost)| *cost).sum();
        cost.as_secs_f64() / 10.0
    });
    sums.fold(0.0, f64::max)
}

#[test]
fn a_program_within_the_budget_keeps_all_detail() {
    let steps = run(&mut controller(), Program::of(0.009), 60);
    assert!(steps.iter().all(|(level, _)| *level == CaptureLevel::Full));
}

#[test]
fn a_short_burst_costs_no_detail() {
    let mut controller = controller();
    run(&mut controller, Program::of(0.001), 5);
    // 20 ms of 100: less than three seconds earn.
    let steps = run(&mut controller, Program::of(0.02), 1);
    assert_eq!(last(&steps), Some(CaptureLevel::Full));
}

#[test]
fn shapes_go_first_if_that_is_enough() {
    let program = Program {
        shapes: 0.02,
        graph: 0.003,
        ..Program::of(0.003)
    };
    let steps = run(&mut controller(), program, 30);
    assert_eq!(last(&steps), Some(CaptureLevel::WithoutShapes));
    assert!(
        steps
            .iter()
            .all(|(level, _)| *level <= CaptureLevel::WithoutShapes)
    );
}

#[test]
fn the_graph_goes_too_if_shapes_are_not_enough() {
    let program = Program {
        shapes: 0.02,
        graph: 0.02,
        ..Program::of(0.005)
    };
    let steps = run(&mut controller(), program, 30);
    assert_eq!(last(&steps), Some(CaptureLevel::WithoutGraph));
    assert!(
        steps
            .iter()
            .all(|(level, _)| *level != CaptureLevel::WithoutShapes),
        "what was measured says that this is not enough"
    );
}

#[test]
fn modules_are_tried_if_little_is_missing() {
    let program = Program {
        modules: 0.004,
        ..Program::of(0.008)
    };
    let steps = run(&mut controller(), program, 30);
    assert_eq!(last(&steps), Some(CaptureLevel::WithoutModules));
}

#[test]
fn the_probes_go_off_and_come_back_if_nothing_else_is_enough() {
    let steps = run(&mut controller(), Program::of(0.3), 60);
    let changes = steps.windows(2).filter(|pair| pair[0].0 != pair[1].0);
    assert!(changes.count() >= 10, "on and off in turn");
    let on = steps
        .iter()
        .filter(|(level, _)| *level != CaptureLevel::Paused);
    let share = on.count() as f64 / steps.len() as f64;
    assert!(
        (0.02..0.05).contains(&share),
        "{share} of the time at a 30th of the cost"
    );
}

#[test]
fn ten_seconds_never_cost_half_more_than_the_budget() {
    for cost in [0.012, 0.02, 0.05, 0.1, 0.3, 0.6, 0.9] {
        let with_all = Program {
            shapes: cost / 4.0,
            graph: cost / 4.0,
            modules: cost / 8.0,
            rest: cost,
        };
        for program in [Program::of(cost), with_all] {
            let mut controller = controller();
            let mut steps = run(&mut controller, Program::of(0.0), 10);
            steps.extend(run(&mut controller, program, 120));
            let share = highest_share(&steps);
            assert!(share <= 1.5 * BUDGET, "{share} where all would cost {cost}");
        }
    }
}

/// Lets probes cost three quarters of the time while they are on, and stay for so many steps after each pause.
fn steps_that_stay(
    controller: &mut BudgetController,
    least: &[u32],
) -> Vec<(CaptureLevel, Duration)> {
    let mut steps = Vec::new();
    let mut least = least.iter().cycle();
    let (mut stays, mut stayed) = (0, 0);
    for _ in 0..6000 {
        let wants_off = controller.level() == CaptureLevel::Paused;
        if !wants_off && stayed == 0 {
            stays = *least.next().expect("a number");
        }
        let is_on = !wants_off || (1..stays).contains(&stayed);
        stayed = if is_on { stayed + 1 } else { 0 };
        let cost = STEP.mul_f64(if is_on { 0.75 } else { 0.0 });
        let of_probes = ProbeCost {
            rest: cost,
            ..ProbeCost::default()
        };
        controller.step(STEP, of_probes);
        steps.push((controller.level(), cost));
    }
    steps
}

/// Share of all the time.
fn mean_share(steps: &[(CaptureLevel, Duration)]) -> f64 {
    let cost: Duration = steps.iter().map(|(_, cost)| *cost).sum();
    ratio(cost, STEP * steps.len() as u32)
}

#[test]
fn probes_that_have_to_stay_are_off_for_longer() {
    // As long as blocks are read on a slow machine.
    let steps = steps_that_stay(&mut controller(), &[6]);
    let highest = highest_share(&steps);
    assert!(highest <= 1.3 * BUDGET, "{highest}");
    let share = mean_share(&steps);
    assert!(share >= 0.7 * BUDGET, "{share}");
}

#[test]
fn probes_that_stay_twice_as_long_as_the_times_before_keep_ten_seconds_within_the_bound() {
    let steps = steps_that_stay(&mut controller(), &[3, 3, 3, 3, 3, 3, 3, 3, 3, 6]);
    let highest = highest_share(&steps);
    assert!(highest <= 1.5 * BUDGET, "{highest}");
    let share = mean_share(&steps);
    assert!(share >= 0.7 * BUDGET, "{share}");
}

#[test]
fn a_burst_after_a_long_calm_time_costs_no_more_than_any_other() {
    let mut controller = controller();
    controller.calm = LONGEST_CALM;
    let mut steps = run(&mut controller, Program::of(0.0), 79);
    steps.extend(run(&mut controller, Program::of(0.3), 30));
    let share = highest_share(&steps);
    assert!(share <= 1.5 * BUDGET, "{share}");
}

#[test]
fn a_program_that_calms_down_gets_its_detail_back() {
    let heavy = Program {
        shapes: 0.1,
        graph: 0.1,
        ..Program::of(0.3)
    };
    let calm = Program {
        shapes: 0.001,
        graph: 0.001,
        ..Program::of(0.001)
    };
    let mut controller = controller();
    run(&mut controller, heavy, 30);
    let steps = run(&mut controller, calm, 300);
    assert_eq!(last(&steps), Some(CaptureLevel::Full));
}

#[test]
fn detail_that_would_have_to_go_again_does_not_come_back() {
    let program = Program {
        shapes: 0.02,
        ..Program::of(0.002)
    };
    let mut controller = controller();
    run(&mut controller, program, 30);
    let steps = run(&mut controller, program, 40);
    assert!(
        steps
            .iter()
            .all(|(level, _)| *level == CaptureLevel::WithoutShapes)
    );
}

#[test]
fn detail_that_goes_again_and_again_comes_back_more_and_more_rarely() {
    // Shapes are cheap while they are off, and dear once they are back.
    let mut controller = controller();
    let mut returns = Vec::new();
    let mut before = CaptureLevel::Full;
    for step in 0..30_000u32 {
        let level = controller.level();
        if level == CaptureLevel::Full && before != level {
            returns.push(step);
        }
        before = level;
        let share = if level == CaptureLevel::Full {
            0.02
        } else {
            0.001
        };
        let cost = ProbeCost {
            shapes: STEP.mul_f64(share),
            ..ProbeCost::default()
        };
        controller.step(STEP, cost);
    }
    assert!((1..=12).contains(&returns.len()), "{returns:?}");
}

#[test]
fn however_much_was_spent_the_probes_come_back() {
    let mut controller = controller();
    // memprobe did not run for a minute, in which the probes took all of the time.
    let minute = Duration::from_secs(60);
    controller.step(minute, Program::of(1.0).cost(CaptureLevel::Full, minute));
    assert_eq!(controller.level(), CaptureLevel::Paused);
    let steps = run(&mut controller, Program::of(0.001), 34);
    assert_ne!(last(&steps), Some(CaptureLevel::Paused));
}

#[test]
fn without_pauses_the_budget_can_be_exceeded_and_that_is_known() {
    let levels = [CaptureLevel::WithoutShapes];
    let mut controller = BudgetController::new(TimeShare::from_ratio(BUDGET), levels);
    let program = Program {
        shapes: 0.1,
        ..Program::of(0.1)
    };
    assert!(!controller.is_exceeded());
    run(&mut controller, program, 10);
    assert!(controller.is_exceeded());
}

#[test]
fn the_reported_share_is_that_of_the_last_seconds() {
    let mut controller = BudgetController::new(TimeShare::from_ratio(1.0), []);
    run(&mut controller, Program::of(0.5), 20);
    assert_eq!(controller.overhead(), TimeShare(500_000));
    run(&mut controller, Program::of(0.1), 11);
    let share = controller.overhead().ratio();
    assert!((0.09..0.15).contains(&share), "{share}");
}

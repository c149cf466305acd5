//! Every screen with sample data, for tests of all screens and for the pictures of the guide.

use std::sync::Arc;

use ratatui::buffer::Buffer;
use ratatui::layout::Position;

use super::SourceText;
use super::bars::Tab;
use super::breakdown::BreakdownScreen;
use super::categories::Categories;
use super::context::ProcessContext;
use super::host;
use super::input::InputEvent;
use super::lines::LineList;
use super::modules::ModuleList;
use super::outside::Outside;
use super::owners::OwnerList;
use super::samples::{self, Sources};
use super::segments::SegmentList;
use super::table_screen::{Content, ScreenLayout, ScreenRequest};
use super::tensors::{TensorList, Tensors};
use super::test_support::{ScreenSize, Shown, typed};
use super::theme::Theme;
use crate::attribution::tables::samples::{categories, layers, modules};
use crate::attribution::tables::{Breakdown, IterationChoice};
use crate::tensors::explain;
use crate::tensors::samples::training;
use crate::view::BreakdownView;

/// Screen of any content.
pub trait AnyScreen {
    fn resize(&mut self, size: ScreenSize);
    fn handle(&mut self, event: InputEvent) -> Option<ScreenRequest>;
    fn draw(&self, buffer: &mut Buffer, theme: &Theme) -> Option<Position>;
    fn areas(&self) -> Option<ScreenLayout>;
    /// Heads of all columns.
    fn heads(&self) -> Vec<&'static str>;
}

impl<C: Content> AnyScreen for Shown<C> {
    fn resize(&mut self, (width, height): ScreenSize) {
        Shown::handle(self, InputEvent::Resize(width, height));
    }

    fn handle(&mut self, event: InputEvent) -> Option<ScreenRequest> {
        Shown::handle(self, event)
    }

    fn draw(&self, buffer: &mut Buffer, theme: &Theme) -> Option<Position> {
        Shown::draw(self, buffer, theme)
    }

    fn areas(&self) -> Option<ScreenLayout> {
        self.layout(&self.context)
    }

    fn heads(&self) -> Vec<&'static str> {
        let columns = self.content.parts().columns.iter();
        columns.map(|column| self.content.head(column)).collect()
    }
}

pub struct Exhibit {
    /// Name of the file of its picture.
    pub name: &'static str,
    /// Description of the picture.
    pub title: String,
    pub screen: Box<dyn AnyScreen>,
    /// The keys are typed into a prompt.
    pub has_prompt: bool,
}

fn exhibit<C: Content>(
    name: &'static str,
    title: &str,
    content: C,
    context: C::Context,
    events: &[InputEvent],
) -> Exhibit
where
    Shown<C>: AnyScreen,
{
    // Keys are pressed on a screen that has all of its parts.
    let mut shown = Shown::new(content, context, (200, 60));
    for event in events {
        shown.handle(*event);
    }
    Exhibit {
        name,
        title: title.to_owned(),
        screen: Box::new(shown),
        has_prompt: false,
    }
}

fn context() -> ProcessContext {
    ProcessContext::new(Arc::new(samples::training()))
}

fn lines() -> LineList {
    LineList::new(Box::new(Script))
}

/// Source text of the samples, with harmless text for the lines that are in no table.
struct Script;

impl SourceText for Script {
    fn line(&mut self, file: &str, line: u32) -> Option<String> {
        let text = Sources.line(file, line)?;
        let others = [
            "",
            "    def forward(self, x):",
            "        residual = x",
            "        x = self.ln(x)",
            "        return x + residual",
        ];
        let is_hostile = text.contains('\u{1b}');
        Some(if is_hostile {
            others[line as usize % others.len()].to_owned()
        } else {
            text
        })
    }

    fn around(&mut self, file: &str, line: u32, radius: u32) -> Option<Vec<(u32, String)>> {
        let lines = Sources.around(file, line, radius)?.into_iter();
        let own = |(number, text)| (number, self.line(file, number).unwrap_or(text));
        Some(lines.map(own).collect())
    }

    fn edit(&mut self, file: &str, line: u32) -> Result<(), String> {
        Sources.edit(file, line)
    }
}

/// Returns the screens of one process, and the screen of a host.
pub fn exhibits() -> Vec<Exhibit> {
    use InputEvent::{GraphAxis, GraphWindow, Help, Move, OpenAll, Probes, Source, Toggle};
    let process = || {
        let mut context = context();
        context.modules = Some(modules());
        context.layers = Some(layers(IterationChoice::Latest));
        context.categories = Some(categories());
        context.segments = Some(samples::segments());
        context.owners = Some(super::owners::samples::owners());
        for breakdown in Breakdown::ALL {
            let devices = samples::breakdown(*breakdown);
            context.breakdowns.insert(*breakdown, devices);
        }
        context.take_tensors(Tensors::Taken(Arc::new(explain(training()))));
        context
    };
    let graph = [GraphWindow, GraphWindow, GraphAxis];
    let outside = ProcessContext::new(Arc::new(samples::with_memory_outside()));
    let lossy = ProcessContext::new(Arc::new(samples::lossy()));
    let layer_list = ModuleList::of_iterations();
    let prompt = Exhibit {
        has_prompt: true,
        ..exhibit(
            "filter",
            "The prompt of a filter",
            lines(),
            context(),
            &typed("model"),
        )
    };
    let tensors = TensorList::default;
    let mut exhibits = vec![
        exhibit("lines", "Lines of Python", lines(), context(), &[]),
        exhibit(
            "graph",
            "The last minute, from the lowest bytes",
            lines(),
            context(),
            &graph,
        ),
        exhibit(
            "source",
            "A line with its source text and callers",
            lines(),
            context(),
            &[Source, Toggle],
        ),
        exhibit(
            "modules",
            "Modules",
            ModuleList::default(),
            process(),
            &[OpenAll],
        ),
        exhibit(
            "layers",
            "Layers of an iteration",
            layer_list,
            process(),
            &[OpenAll],
        ),
        exhibit("categories", "Categories", Categories, process(), &[]),
        exhibit("tensors", "Tensors", tensors(), process(), &[]),
        exhibit(
            "tensor",
            "One tensor",
            tensors(),
            process(),
            &[Move(1), Toggle],
        ),
        exhibit(
            "outside",
            "Memory outside the allocator",
            Outside::default(),
            outside,
            &[OpenAll],
        ),
        exhibit(
            "owners",
            "Owners of the memory",
            OwnerList::default(),
            process(),
            &[Move(1)],
        ),
        exhibit(
            "segments",
            "Segments of the allocator",
            SegmentList::default(),
            process(),
            &[Move(1)],
        ),
    ];
    let breakdowns = Breakdown::ALL.iter();
    exhibits.extend(breakdowns.map(|breakdown| breakdown_exhibit(*breakdown, process())));
    exhibits.extend([
        exhibit("probes", "Probes, after losses", lines(), lossy, &[Probes]),
        exhibit("help", "Help", lines(), context(), &[Help]),
        host_exhibit(),
        prompt,
    ]);
    exhibits
}

fn breakdown_exhibit(breakdown: Breakdown, context: ProcessContext) -> Exhibit {
    let name = BreakdownView::of(breakdown).plural;
    let (first, rest) = name.split_at(1);
    let title = first.to_uppercase() + rest;
    exhibit(name, &title, BreakdownScreen::new(breakdown), context, &[])
}

fn host_exhibit() -> Exhibit {
    let (content, context) = host::sample();
    exhibit("top", "Processes of a machine: top", content, context, &[])
}

/// Tabs that have no screen in the gallery would be forgotten.
#[test]
fn every_tab_is_in_the_gallery() {
    for tab in Tab::all() {
        let mut names = exhibits().into_iter().map(|exhibit| exhibit.name);
        assert!(names.any(|name| name == tab.name()), "{tab:?}");
    }
}

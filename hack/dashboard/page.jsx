// The dashboard of the chart, drawn by Grafana's own components: theirs are the panels, units, thresholds, colours and legends. Here is what
// Grafana does around them, as far as this dashboard needs it. What it does not know is an error, and is shown.
import { useEffect, useRef, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';
import {
  applyFieldOverrides, cacheFieldDisplayNames, createTheme, dateTime, dateTimeFormat, FieldConfigOptionsRegistry, fieldMatchers, FieldType, getDisplayValueAlignmentFactors,
  getFieldDisplayValues, identityOverrideProcessor, rangeUtil, standardTransformers, standardTransformersRegistry, transformDataFrame,
} from '@grafana/data';
import { defaultOptions as barGaugeOptions } from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import { defaultOptions as statOptions } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import { defaultOptions as tableOptions } from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import { Alert, BarGauge, BigValue, ErrorBoundary, GlobalStyles, PanelChrome, Stack, Text, ThemeContext, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

const search = new URLSearchParams(location.search);
const from = Number(search.get('from')), to = Number(search.get('to'));
const scrape = Number(search.get('scrape')); // in milliseconds: what Grafana's data source calls the scrape interval
const range = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
const theme = createTheme({ colors: { mode: 'light' } });

// Defaults of Grafana's panels; those that its schema does not have are written out. They also are all that may be given.
const reduceOptions = { values: false, calcs: ['lastNotNull'], fields: '' };
const thresholds = { mode: 'absolute', steps: [{ color: 'green', value: null }, { color: 'red', value: 80 }] };
const kinds = {
  timeseries: {
    Draw: Graph,
    options: { legend: { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [], sortBy: undefined, sortDesc: undefined, width: undefined }, tooltip: { mode: 'single', sort: 'none' } },
    defaults: { color: { mode: 'palette-classic' }, thresholds },
    custom: {
      drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none', spanNulls: false, showPoints: 'auto', pointSize: 5,
      stacking: { mode: 'none', group: 'A' }, axisPlacement: 'auto', axisSoftMin: undefined, axisSoftMax: undefined, axisLabel: '', axisGridShow: true,
      scaleDistribution: { type: 'linear', log: undefined }, thresholdsStyle: { mode: 'off' },
    },
  },
  stat: { Draw: Stat, options: { ...statOptions, reduceOptions, orientation: 'auto' }, defaults: { color: { mode: 'thresholds' }, thresholds }, custom: {} },
  bargauge: { Draw: Bars, options: { ...barGaugeOptions, reduceOptions, orientation: 'auto' }, defaults: { color: { mode: 'thresholds' }, thresholds }, custom: {} },
  table: {
    Draw: Table,
    options: tableOptions,
    defaults: { color: { mode: 'thresholds' }, thresholds },
    custom: { align: 'auto', cellOptions: { type: 'auto' }, width: undefined, minWidth: undefined, filterable: false },
  },
};
const onlyNumbers = ['unit', 'min', 'max', 'decimals'];
const standard = [...onlyNumbers, 'color', 'displayName', 'mappings', 'noValue', 'thresholds'];
const transformers = new Map(Object.values(standardTransformers).map((t) => [t.id, t])); // some have two names there
standardTransformersRegistry.setInit(() => [...transformers.values()].map((t) => ({ id: t.id, name: t.name, transformation: async () => t })));

const plain = (x) => typeof x === 'object' && x !== null && !Array.isArray(x);

// over gives the defaults with what is given over them, which may have no key that they do not have.
function over(where, defaults, given = {}) {
  const out = { ...defaults };
  for (const [key, value] of Object.entries(given)) {
    if (!(key in defaults)) throw new Error(`${where}.${key} is not known here`);
    const deeper = plain(value) && plain(defaults[key]) && key !== 'thresholds' && key !== 'color' && key !== 'cellOptions';
    out[key] = deeper ? over(`${where}.${key}`, defaults[key], value) : value;
  }
  return out;
}

// only wants the object to have no other keys.
const only = (where, object, ...keys) => over(where, Object.fromEntries(keys.map((k) => [k])), object);

// variables puts the values of the dashboard's variables, and of Grafana's own, into a text.
function variables(board, step) {
  const values = {
    __interval: rangeUtil.secondsToHms(step / 1000),
    __rate_interval: rangeUtil.secondsToHms(Math.max(step + scrape, 4 * scrape) / 1000),
  };
  for (const v of board.templating.list) {
    if (v.type === 'query' && v.includeAll && v.current.value === '$__all') values[v.name] = v.allValue;
  }
  return (text) => text.replace(/\$(\w+|\{.*?\})/g, (whole, name) => {
    if (!(name in values)) throw new Error(`the variable ${whole} is not known here`);
    return values[name];
  });
}

// ask puts a query to Prometheus (prometheus.io/docs/prometheus/latest/querying/api), and gives a frame for each series of the answer.
async function ask(target, step, put) {
  only('target', target, 'refId', 'datasource', 'expr', 'legendFormat', 'instant', 'format');
  const start = Math.ceil(from / step) * step;
  const when = target.instant ? { time: to / 1000 } : { start: start / 1000, end: to / 1000, step: step / 1000 };
  const answer = await fetch(`/api/v1/query${target.instant ? '' : '_range'}?` + new URLSearchParams({ query: put(target.expr), ...when }));
  const { status, error, data } = await answer.json();
  if (status !== 'success') throw new Error(error);
  const legend = (labels) => target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => {
    if (!labels[name]) throw new Error(`the legend of ${target.expr} names the label ${name}, which there is not`);
    return labels[name];
  });
  const frames = data.result.map(({ metric, values, value }) => {
    const points = values ?? [value];
    return {
      refId: target.refId,
      length: points.length,
      fields: [
        { name: 'Time', type: FieldType.time, config: { interval: step }, values: points.map(([t]) => t * 1000) },
        { name: 'Value', type: FieldType.number, labels: metric, config: target.format === 'table' ? {} : { displayNameFromDS: legend(metric) }, values: points.map(([, v]) => (isFinite(v) ? Number(v) : null)) },
      ],
    };
  });
  if (!target.format || target.format === 'time_series') return frames;
  if (target.format === 'table' && target.instant) return frames.length ? [table(frames)] : [];
  throw new Error(`the format ${target.format} is not known here`);
}

// table makes a row of each series: its time, its labels, its value.
function table(frames) {
  const labels = [...new Set(frames.flatMap((f) => Object.keys(f.fields[1].labels)))].sort();
  const column = (name, type, values) => ({ name, type, config: {}, values });
  return {
    refId: frames[0].refId,
    length: frames.length,
    fields: [
      column('Time', FieldType.time, frames.map((f) => f.fields[0].values[0])),
      ...labels.map((l) => column(l, FieldType.string, frames.map((f) => f.fields[1].labels[l]))),
      column('Value', FieldType.number, frames.map((f) => f.fields[1].values[0])),
    ],
  };
}

// answer gives what a panel shows: its queries' answers, transformed, and with the configuration of the fields.
async function answer(board, panel, width) {
  only('panel', panel, 'id', 'type', 'title', 'description', 'datasource', 'gridPos', 'targets', 'fieldConfig', 'options', 'transformations');
  const kind = kinds[panel.type];
  if (!kind) throw new Error(`the panel type ${panel.type} is not known here`);
  const step = rangeUtil.calculateInterval(range, width, `${scrape}ms`).intervalMs;
  const put = variables(board, step);
  let frames = (await Promise.all(panel.targets.map((t) => ask(t, step, put)))).flat();
  for (const t of panel.transformations ?? []) standardTransformersRegistry.get(t.id);
  frames = await lastValueFrom(transformDataFrame(panel.transformations ?? [], frames));

  const { defaults, overrides } = only('fieldConfig', panel.fieldConfig, 'defaults', 'overrides');
  const { custom, ...given } = defaults;
  const fieldConfig = {
    defaults: { ...over('defaults', { ...Object.fromEntries(standard.map((k) => [k])), ...kind.defaults }, given), custom: over('defaults.custom', kind.custom, custom) },
    overrides,
  };
  const item = (id, isCustom) => ({ id: isCustom ? `custom.${id}` : id, path: id, name: id, isCustom, process: identityOverrideProcessor, shouldApply: (f) => !onlyNumbers.includes(id) || f.type === FieldType.number });
  const fieldConfigRegistry = new FieldConfigOptionsRegistry(() => [...standard.map((id) => item(id, false)), ...Object.keys(kind.custom).map((id) => item(id, true))]);
  for (const o of overrides) {
    fieldMatchers.get(o.matcher.id);
    for (const p of o.properties) fieldConfigRegistry.get(p.id);
  }
  frames = applyFieldOverrides({ data: frames, fieldConfig, fieldConfigRegistry, replaceVariables: put, theme, timeZone: 'utc' });
  cacheFieldDisplayNames(frames);
  return {
    frames,
    options: over('options', kind.options, panel.options),
    fieldConfig,
    Draw: kind.Draw,
  };
}

function Graph({ frames, options, width, height }) {
  return <TimeSeries frames={frames} timeRange={range} timeZone="utc" legend={options.legend} width={width} height={height} />;
}

function fieldValues({ frames, options, fieldConfig }, sparkline) {
  return getFieldDisplayValues({ data: frames, reduceOptions: options.reduceOptions, fieldConfig, replaceVariables: (t) => t, theme, sparkline, timeZone: 'utc' });
}

function Stat(props) {
  const { options, frames, width, height } = props;
  return (
    <VizRepeater source={frames} getValues={() => fieldValues(props, options.graphMode !== 'none')} getAlignmentFactors={getDisplayValueAlignmentFactors} orientation={options.orientation}
      autoGrid itemSpacing={3} renderCounter={0} width={width} height={height}
      renderValue={({ value, ...at }) => (
        <BigValue {...options} {...at} theme={theme} value={value.display} sparkline={value.sparkline && { ...value.sparkline, timeRange: range }} />
      )} />
  );
}

function Bars(props) {
  const { options, frames, width, height } = props;
  return (
    <VizRepeater source={frames} getValues={() => fieldValues(props, false)} getAlignmentFactors={getDisplayValueAlignmentFactors} orientation={options.orientation}
      minVizWidth={options.minVizWidth} minVizHeight={options.minVizHeight} maxVizHeight={options.maxVizHeight} renderCounter={0} width={width} height={height}
      renderValue={({ value, ...at }) => (
        <BarGauge {...options} {...at} theme={theme} value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)} valueDisplayMode={options.valueMode} />
      )} />
  );
}

function Table({ frames, options, fieldConfig, width, height }) {
  if (frames.length !== 1) throw new Error(`a table of ${frames.length} frames is not known here`);
  return (
    <TableNG data={frames[0]} fieldConfig={fieldConfig} width={width} height={height} noHeader={!options.showHeader} cellHeight={options.cellHeight} sortBy={options.sortBy}
      showTypeIcons={options.showTypeIcons} enableVirtualization={false} structureRev={1} />
  );
}

const isEmpty = (frames) => !frames.some((f) => f.fields.some((x) => x.type === FieldType.number && x.values.some((v) => v !== null)));

// Panel says in the DOM how it stands, when all of it is drawn: "drawn", "empty" or "error".
function Panel({ board, panel, ...at }) {
  const [shown, show] = useState();
  const place = useRef();
  useEffect(() => {
    answer(board, panel, at.width).then(show, (error) => show({ error }));
  }, []);
  useEffect(() => {
    if (!shown) return;
    const state = shown.error ? 'error' : isEmpty(shown.frames) ? 'empty' : 'drawn';
    const look = () => {
      const waits = state === 'drawn' && panel.type === 'timeseries' && !place.current.querySelector('canvas');
      if (waits) requestAnimationFrame(look);
      else place.current.dataset.state = state;
    };
    requestAnimationFrame(look);
  }, [shown]);
  return (
    <div ref={place} className="panel" style={{ position: 'absolute', left: at.left, top: at.top }}>
      <PanelChrome title={panel.title} description={panel.description} width={at.width} height={at.height}>
        {(width, height) => (
          <ErrorBoundary>
            {({ error }) => {
              if (error ?? shown?.error) return <Alert title={String((error ?? shown.error).message)} />;
              if (!shown) return null;
              if (isEmpty(shown.frames)) return <Stack height="100%" alignItems="center" justifyContent="center"><Text color="secondary">{shown.fieldConfig.defaults.noValue ?? 'No data'}</Text></Stack>;
              return <shown.Draw {...shown} width={width} height={height} />;
            }}
          </ErrorBoundary>
        )}
      </PanelChrome>
    </div>
  );
}

// Grafana's grid: 24 columns, rows of 30 pixels, gaps of 8.
const gap = 8, row = 30, head = 48;

function Dashboard({ board }) {
  const [fonts, setFonts] = useState(false); // what is written on a canvas stays in the font that was there
  useEffect(() => {
    Promise.all(['400', '500'].map((weight) => document.fonts.load(`${weight} 12px Inter`))).then(() => setFonts(true));
  }, []);
  const column = (innerWidth - gap) / 24;
  const bottom = Math.max(...board.panels.map(({ gridPos: g }) => g.y + g.h));
  const nodes = board.templating.list.filter((v) => v.type === 'query').map((v) => `${v.label}: ${v.current.text}`);
  return (
    <div style={{ position: 'relative', height: head + bottom * (row + gap) + gap }}>
      <div style={{ padding: '12px 16px' }}>
        <Stack alignItems="center" gap={3}>
          <Text element="h1" variant="h4">{board.title}</Text>
          {nodes.map((n) => <Text key={n} color="secondary">{n}</Text>)}
          <div style={{ flexGrow: 1 }} />
          <Text color="secondary">{dateTimeFormat(from, { timeZone: 'utc' })} to {dateTimeFormat(to, { timeZone: 'utc' })} UTC</Text>
        </Stack>
      </div>
      {fonts && board.panels.map((panel) => {
        const { x, y, w, h } = panel.gridPos;
        return <Panel key={panel.id} board={board} panel={panel} left={gap + x * column} top={head + y * (row + gap)} width={w * column - gap} height={h * (row + gap) - gap} />;
      })}
    </div>
  );
}

async function draw() {
  const board = await (await fetch('/dashboard.json')).json();
  createRoot(document.getElementById('root')).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Dashboard board={board} />
    </ThemeContext.Provider>,
  );
}

draw();

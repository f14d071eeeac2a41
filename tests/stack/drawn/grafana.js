// Grafana's registries, and what Grafana's server does before a panel is drawn: frames, transformations, field options.
import {
  FieldType,
  PanelPlugin,
  applyFieldOverrides,
  createTheme,
  identityOverrideProcessor,
  standardEditorsRegistry,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  toDataFrame,
  transformDataFrame,
} from '@grafana/data';

export const theme = createTheme({colors: {mode: 'dark'}});

const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'color', 'thresholds', 'mappings', 'links'];
const CUSTOM = {
  drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, gradientMode: 'none', showPoints: 'auto',
  pointSize: 5, spanNulls: false, insertNulls: false, barAlignment: 0, stacking: {mode: 'none', group: 'A'},
  axisPlacement: 'auto', axisColorMode: 'text', axisBorderShow: false, scaleDistribution: {type: 'linear'},
  axisCenteredZero: false, hideFrom: {tooltip: false, viz: false, legend: false}, thresholdsStyle: {mode: 'off'},
  lineStyle: undefined, axisLabel: undefined, fillBelowTo: undefined, axisSoftMin: undefined, axisSoftMax: undefined,
  axisGridShow: undefined, axisWidth: undefined, align: undefined, cellOptions: undefined, width: undefined,
  minWidth: undefined,
};
const option = (id, more = {}) => ({
  id, path: id, name: id, editor: () => null, override: () => null, process: identityOverrideProcessor,
  shouldApply: () => true, settings: {}, ...more,
});
standardFieldConfigEditorRegistry.setInit(() => STANDARD.map((id) => option(id)));
standardEditorsRegistry.setInit(() => []);
const transformers = [...new Map(Object.values(standardTransformers).map((each) => [each.id, each])).values()];
standardTransformersRegistry.setInit(() =>
  transformers.map((each) => ({id: each.id, transformation: each, name: each.name, aliasIds: [], editor: () => null})));
const plugin = new PanelPlugin(() => null).useFieldConfig({
  useCustomConfig: (builder) => {
    for (const [id, defaultValue] of Object.entries(CUSTOM)) builder.addCustomEditor(option(id, {defaultValue}));
  },
});

// The answers of a panel's targets as Grafana's data source for Prometheus makes frames of them.
function frames(panel, targets) {
  return targets.flatMap((target) =>
    target.format === 'table' ? tableFrame(target, targets.length) : target.result.map((series) => line(series, target)));
}

function tableFrame({refId, result, end_s}, targets) {
  if (!result.length) return [];
  const labels = [...new Set(result.flatMap(({metric}) => Object.keys(metric)))].sort();
  const texts = labels.map((name) => ({
    name, type: FieldType.string, config: {}, values: result.map(({metric}) => metric[name] ?? ''),
  }));
  const value = {
    name: targets > 1 ? `Value #${refId}` : 'Value', type: FieldType.number, config: {},
    values: result.map(({value: [, number]}) => +number),
  };
  const time = {name: 'Time', type: FieldType.time, config: {}, values: result.map(() => 1000 * end_s)};
  return [toDataFrame({refId, fields: [time, ...texts, value]})];
}

function line(series, {refId, legend, start_s, end_s, step_s}) {
  const name = legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => series.metric[label] ?? '') || JSON.stringify(series.metric);
  const values = series.values ?? [series.value];
  const known = new Map(values.map(([at, number]) => [at, +number]));
  const moments = series.values ? [] : [values[0][0]];
  for (let at = start_s; series.values && at <= end_s; at += step_s) moments.push(at);
  return toDataFrame({
    refId, name,
    fields: [
      {name: 'Time', type: FieldType.time, config: {interval: 1000 * step_s}, values: moments.map((at) => 1000 * at)},
      {
        name: 'Value', type: FieldType.number, labels: series.metric, config: {displayNameFromDS: name},
        values: moments.map((at) => known.get(at) ?? null),
      },
    ],
  });
}

const transformed = (transformations, data) => new Promise((resolve, reject) => {
  let last = data;
  transformDataFrame(transformations, data, {interpolate: (text) => text})
    .subscribe({next: (given) => { last = given; }, error: reject, complete: () => resolve(last)});
});

// In JSON the first threshold has no value, as minus infinity cannot be written there.
const withInfinity = (thresholds) => ({
  ...thresholds, steps: thresholds.steps.map((step) => ({...step, value: step.value ?? -Infinity})),
});
const GRAFANAS_OWN = {
  thresholds: {mode: 'absolute', steps: [{value: null, color: 'green'}, {value: 80, color: 'red'}]},
  color: {mode: 'palette-classic'},
};

function fieldConfigOf(panel) {
  const defaults = {...GRAFANAS_OWN, ...panel.fieldConfig.defaults};
  return {
    defaults: {...defaults, thresholds: withInfinity(defaults.thresholds), custom: {...CUSTOM, ...defaults.custom}},
    overrides: (panel.fieldConfig.overrides ?? []).map((override) => ({
      ...override,
      properties: override.properties.map((each) =>
        each.id === 'thresholds' ? {...each, value: withInfinity(each.value)} : each),
    })),
  };
}

export async function dataOf({panel, targets}) {
  const raw = await transformed(panel.transformations ?? [], frames(panel, targets));
  const fieldConfig = fieldConfigOf(panel);
  const data = applyFieldOverrides({
    data: raw, fieldConfig, replaceVariables: (text) => text, theme, timeZone: 'utc',
    fieldConfigRegistry: plugin.fieldConfigRegistry,
  });
  return {frames: data, fieldConfig};
}

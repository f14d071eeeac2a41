// A panel of each kind. Time series, numbers and tables are Grafana's components; bars of states and heatmaps, which
// @grafana/ui does not have, are stand-ins that show the same data.
import React from 'react';
import {getFieldDisplayValues} from '@grafana/data';
import {BigValue, PanelChrome, Table, TimeSeries} from '@grafana/ui';
import {theme} from './grafana.js';

export const axes = new Map(); // By the panel's number, the drawn plot, whose ticks are read afterwards.

function Lines({panel, data, range, width, height}) {
  const {legend} = panel.options;
  return (
    <TimeSeries frames={data.frames} structureRev={1} timeRange={range} timeZone="utc" width={width} height={height}
      legend={{...legend, calcs: legend.calcs ?? []}} options={panel.options}>
      {(builder) => { builder.addHook('draw', (plot) => axes.set(panel.id, plot)); return null; }}
    </TimeSeries>
  );
}

function Numbers({panel, data, width, height}) {
  const {options} = panel;
  const shown = getFieldDisplayValues({
    fieldConfig: data.fieldConfig, reduceOptions: options.reduceOptions, replaceVariables: (text) => text, theme,
    data: data.frames, sparkline: false, timeZone: 'utc',
  });
  const columns = Math.max(1, Math.min(shown.length, Math.round(width / 150)));
  const rows = Math.ceil(shown.length / columns);
  return (
    <div style={{display: 'grid', gridTemplateColumns: `repeat(${columns}, 1fr)`, gap: 8}}>
      {shown.map(({display}, place) => (
        <div key={place} data-number>
          <BigValue value={display} width={width / columns - 8} height={height / rows - 8} theme={theme}
            colorMode={options.colorMode} graphMode={options.graphMode} justifyMode="auto" textMode={options.textMode}
            count={shown.length} />
        </div>
      ))}
    </div>
  );
}

function Rows({panel, data, range, width, height}) {
  return (
    <Table data={data.frames[0]} width={width} height={height} resizable initialSortBy={panel.options?.sortBy ?? []}
      cellHeight="sm" timeRange={range} fieldConfig={data.fieldConfig} />
  );
}

export const wordsOf = (field, value) => {
  const word = (field.config.mappings ?? []).map(({options}) => options?.[String(value)]).find(Boolean);
  return word ?? {text: String(value), color: 'gray'};
};
export const rowsOfStates = (data) => data.frames.map(({fields: [time, value]}) => ({
  name: value.config.displayNameFromDS, field: value, times: time.values, values: value.values,
}));

function States({data, range, width, height}) {
  const rows = rowsOfStates(data).slice(0, 20);
  const left = Math.min(260, 0.3 * width), begin = range.from.valueOf(), whole = range.to.valueOf() - begin;
  const high = (height - 24) / rows.length;
  const used = new Map();
  return (
    <div style={{position: 'relative', width, height, fontSize: 12}}>
      {rows.map(({name, field, times, values}, row) => (
        <div key={row}>
          <div style={{position: 'absolute', width: left - 6, top: row * high + high / 2 - 8, textAlign: 'right'}}>{name}</div>
          {values.map((value, place) => {
            if (value === null) return null;
            const {text, color} = wordsOf(field, value);
            const painted = theme.visualization.getColorByName(color);
            used.set(text, painted);
            const from = left + ((times[place] - begin) / whole) * (width - left);
            const step = times.length > 1 ? ((times[1] - times[0]) / whole) * (width - left) : width - left;
            const style = {
              position: 'absolute', left: from, width: Math.min(step + 1, width - from), top: (row + 0.05) * high,
              height: 0.9 * high, background: painted,
            };
            return <div key={place} style={style} />;
          })}
        </div>
      ))}
      <div style={{position: 'absolute', bottom: 0, display: 'flex', gap: 12}}>
        {[...used].map(([text, color]) => <span key={text} style={{color}}>{text}</span>)}
      </div>
    </div>
  );
}

function Buckets({data, width, height}) {
  const rows = data.frames.map(({fields: [, value]}) => ({le: Number(value.labels.le.replace('+Inf', 'Infinity')), value}))
    .sort((one, other) => one.le - other.le);
  const alone = rows.map(({value}, row) =>
    value.values.map((number, at) => Math.max(0, (number ?? 0) - (row ? rows[row - 1].value.values[at] ?? 0 : 0))));
  const most = Math.max(...alone.flat(), 1e-12);
  const wide = width / Math.max(1, alone[0]?.length ?? 1), high = height / Math.max(1, rows.length);
  return (
    <div style={{position: 'relative', width, height}}>
      {alone.flatMap((values, row) => values.map((number, at) => number > 0 && (
        <div key={`${row} ${at}`} style={{
          position: 'absolute', left: at * wide, bottom: row * high, width: wide, height: high,
          background: `rgba(90, 150, 255, ${Math.sqrt(number / most)})`,
        }} />
      )))}
    </div>
  );
}

const KINDS = {timeseries: Lines, stat: Numbers, table: Rows, 'state-timeline': States, heatmap: Buckets};

export const isEmpty = ({frames}) => frames.every((frame) => !frame.length || !frame.fields.length);

export function Panel({panel, data, range, place}) {
  const Kind = KINDS[panel.type];
  return (
    <div data-panel={panel.id} style={{position: 'absolute', ...place}}>
      <PanelChrome title={panel.title} description={() => panel.description} width={place.width} height={place.height}
        padding={panel.type === 'table' ? 'none' : 'md'}>
        {(width, height) => panel.type !== 'stat' && isEmpty(data)
          ? <div data-message style={{
              display: 'flex', width, height, alignItems: 'center', justifyContent: 'center', textAlign: 'center',
              color: theme.colors.text.secondary,
            }}>{panel.fieldConfig.defaults.noValue}</div>
          : <Kind panel={panel} data={data} range={range} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

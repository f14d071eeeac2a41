// One dashboard as a page: `draw(page, width)` draws it, and `measured()` says what stands on it, read from the page.
import React from 'react';
import {flushSync} from 'react-dom';
import {createRoot} from 'react-dom/client';
import {dateTime, ThemeContext} from '@grafana/data';
import {GlobalStyles, UPLOT_AXIS_FONT_SIZE} from '@grafana/ui';
import '@fontsource/inter/400.css';
import '@fontsource/inter/500.css';
import {dataOf, theme} from './grafana.js';
import {Panel, axes, isEmpty, rowsOfStates, wordsOf} from './panels.jsx';

const LINE = 38, GAP = 8, COLUMNS = 24; // Of Grafana's grid, in pixels.
const root = createRoot(document.getElementById('root'));
let shown = [];

window.draw = async (page, width) => {
  const data = await Promise.all(page.panels.map(dataOf));
  shown = page.panels.map(({panel}, place) => ({panel, data: data[place]}));
  axes.clear();
  const range = {
    from: dateTime(1000 * page.start_s), to: dateTime(1000 * page.end_s), raw: {from: 'now-1h', to: 'now'},
  };
  const column = (width - 2 * GAP + GAP) / COLUMNS;
  const bottom = Math.max(...page.panels.map(({panel: {gridPos: {y, h}}}) => y + h));
  const box = {width, background: theme.colors.background.canvas, color: theme.colors.text.primary};
  const frame = {padding: '10px 16px', background: theme.colors.background.primary};
  flushSync(() => root.render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div key={`${page.title} ${width} ${Math.random()}`} style={{...box, fontFamily: theme.typography.fontFamily, fontSize: 14}}>
        <div style={frame}>Dashboards › Parallel Observatory › <b>{page.title}</b></div>
        <div style={{...frame, display: 'flex', gap: 16}}>
          {page.chosen.map(([label, value]) => <span key={label}>{label}: <b>{value}</b></span>)}
        </div>
        <div style={{position: 'relative', height: LINE * bottom, marginTop: GAP}}>
          {page.rows.map(({id, title, gridPos}) => (
            <div key={id} style={{position: 'absolute', left: GAP, top: LINE * gridPos.y + 6}}>⌄ {title}</div>
          ))}
          {shown.map(({panel, data: given}) => (
            <Panel key={panel.id} panel={panel} data={given} range={range} place={{
              left: GAP + column * panel.gridPos.x, top: LINE * panel.gridPos.y,
              width: column * panel.gridPos.w - GAP, height: LINE * panel.gridPos.h - GAP,
            }} />
          ))}
        </div>
      </div>
    </ThemeContext.Provider>));
  await document.fonts.ready;
  await new Promise((resolve) => setTimeout(resolve, 50));
  return document.getElementById('root').scrollHeight;
};

const isCut = (element) => element.scrollWidth > element.clientWidth + 1;
// Whether a text is cut: it reaches beyond the element, or beyond one within it that shows no overflow.
function anyCut(element) {
  return [element, ...element.querySelectorAll('*')].some((each) => {
    if (![...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim())) return false;
    const text = document.createRange();
    text.selectNodeContents(each);
    const {right} = text.getBoundingClientRect();
    if (each.clientWidth > 0 && isCut(each)) return true;
    for (let around = each; around !== element.parentElement; around = around.parentElement) {
      const clips = around === element || getComputedStyle(around).overflowX !== 'visible';
      if (clips && right > around.getBoundingClientRect().right + 0.1) return true;
    }
    return false;
  });
}

function numbers(element) {
  return [...element.querySelectorAll('[data-number]')].map((number) => {
    const value = number.firstChild;
    const texts = [...value.querySelectorAll('span')].filter((each) => each.firstChild?.nodeType === Node.TEXT_NODE);
    const {backgroundImage, backgroundColor} = getComputedStyle(value);
    return {
      text: value.innerText,
      background: backgroundImage === 'none' ? backgroundColor : backgroundImage,
      smallest_px: Math.min(...texts.map((each) => parseFloat(getComputedStyle(each).fontSize))),
      is_cut: value.scrollWidth > value.clientWidth + 1,
    };
  });
}

function table(element) {
  const headers = [...element.querySelectorAll('[role=columnheader]')];
  const rows = [...element.querySelectorAll('[role=row]')].map((row) => [...row.querySelectorAll('[role=cell]')])
    .filter((cells) => cells.length);
  return {
    columns: headers.map((header) => header.innerText.trim()),
    cut_headers: headers.filter(anyCut).map((header) => header.innerText.trim()),
    width_px: headers.reduce((sum, header) => sum + header.getBoundingClientRect().width, 0),
    room_px: element.getBoundingClientRect().width,
    rows: rows.map((cells) => cells.map((cell) => cell.innerText.trim())),
    colours: rows.map((cells) => cells.map((cell) => getComputedStyle(cell).color)),
    cut_cells: rows.flatMap((cells) => cells.map((cell, place) => [place, cell]).filter(([, cell]) => anyCut(cell))
      .map(([place, cell]) => [headers[place]?.innerText.trim(), cell.innerText.trim()])),
  };
}

function lines(panel) {
  const plot = axes.get(panel.id);
  if (!plot) return [];
  return plot.axes.filter(({scale}) => scale !== 'x').map((axis) => {
    const values = plot.series.flatMap((series, place) =>
      place && series.scale === axis.scale && series.show ? [...plot.data[place]].filter((value) => value != null) : []);
    const pen = document.createElement('canvas').getContext('2d');
    pen.font = `${UPLOT_AXIS_FONT_SIZE}px ${theme.typography.fontFamily}`;
    const texts = (axis._values ?? []).map(String);
    const room_px = axis._size - axis.ticks.size - axis.gap;
    const cut_ticks = texts.filter((text) => pen.measureText(text).width > room_px + 1);
    return {unit: axis.scale, cut_ticks, room_px, ticks: (axis._values ?? []).map(String), at: axis._splits ?? [], most: Math.max(...values), least: Math.min(...values)};
  });
}

// The names beside or below the lines, those that are cut, and the width that the lines have left.
function legend(element) {
  const table = element.querySelector('table');
  const plot_px = element.querySelector('.uplot')?.getBoundingClientRect().width ?? null;
  if (!table) return {names: [], cut_names: [], plot_px};
  let around = table.parentElement;
  while (getComputedStyle(around).overflowX === 'visible') around = around.parentElement;
  const end = around.getBoundingClientRect().right + 1;
  const rows = [...table.querySelectorAll('tbody tr')];
  const nameOf = (row) => row.querySelector('button').innerText.trim();
  const isRowCut = (row) => isCut(row.querySelector('button')) || row.lastChild.getBoundingClientRect().right > end;
  return {names: rows.map(nameOf), cut_names: rows.filter(isRowCut).map(nameOf), plot_px};
}

window.measured = () => shown.map(({panel, data}) => {
  const element = document.querySelector(`[data-panel="${panel.id}"]`);
  const heading = element.querySelector('h2');
  const common = {
    title: panel.title, type: panel.type, description: panel.description, is_empty: isEmpty(data),
    is_title_cut: heading ? anyCut(heading) : false, message: element.querySelector('[data-message]')?.innerText ?? null,
    values: data.frames.flatMap(({fields}) => fields).filter(({type}) => type === 'number')
      .map(({values, labels}) => ({labels: labels ?? {}, last: values.at(-1) ?? null})),
  };
  if (panel.type === 'stat') return {...common, numbers: numbers(element)};
  if (panel.type === 'table') return {...common, table: isEmpty(data) ? null : table(element)};
  if (panel.type === 'timeseries') return {...common, axes: lines(panel), legend: legend(element), room_px: element.getBoundingClientRect().width};
  if (panel.type === 'state-timeline') {
    return {...common, states: rowsOfStates(data).map(({name, field, values}) => [name, values.at(-1) === null ? null : wordsOf(field, values.at(-1)).text])};
  }
  return common;
});

'use strict';
const words = document.getElementById('words');
const count = document.getElementById('count');
const rules = [...document.querySelectorAll('.rule')].map(at => ({ at, text: at.textContent.toLowerCase() }));
function look() {
  const all = words.value.toLowerCase().split(/\s+/).filter(w => w);
  let shown = 0;
  for (const { at, text } of rules) {
    at.hidden = !all.every(w => text.includes(w));
    shown += at.hidden ? 0 : 1;
  }
  count.textContent = all.length ? `${shown} of ${rules.length}` : '';
}
words.addEventListener('input', look);
look();

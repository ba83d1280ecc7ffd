// Sends the sticks and the first two buttons of a gamepad to the page's own server.
"use strict";

const PERIOD = 20; // ms between two readings
const REST = JSON.stringify({ axes: [0, 0, 0, 0], buttons: [false, false] });
let socket = null;
let sent = REST;

function read() {
  const pads = [...navigator.getGamepads()];
  const pad = pads.find((x) => x && x.connected && x.mapping === "standard");
  if (!pad) return REST;
  const axes = pad.axes.slice(0, 4).map((x) => Number(x.toFixed(2)));
  return JSON.stringify({ axes, buttons: pad.buttons.slice(0, 2).map((x) => x.pressed) });
}

function open() {
  socket = new WebSocket(`ws://${location.host}/gamepad`);
  // the server has let go of the sticks; it may be started anew
  socket.onclose = () => setTimeout(() => ([socket, sent] = [null, REST]), 1000);
}

setInterval(() => {
  const now = read();
  if (now === sent) return;
  if (!socket) open();
  if (socket.readyState !== WebSocket.OPEN) return;
  socket.send(now);
  sent = now;
}, PERIOD);

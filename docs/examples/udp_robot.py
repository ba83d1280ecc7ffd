"""A robot in MuJoCo for robot_loop.py: it runs in real time, and its network is not perfect.

    python udp_robot.py policy.onnx 5005 [seconds] [drop] [jitter]

`drop` is the share of packets that are lost, each way; `jitter` [s] delays each by up to that time.
One packet in 200 comes two control steps late. Without packets for 0.2 s it crouches, as a
robot's own driver should: one that keeps its last targets in the middle of a step falls over.
After `seconds`, or when a program has taken the servos' gain away, it prints a line of JSON.
"""

import heapq
import json
import random
import socket
import sys
import time

import mujoco
import numpy as np
import onnxruntime

if not 3 <= len(sys.argv) <= 6:
    sys.exit(__doc__)
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    held = onnxruntime.InferenceSession(sys.argv[1]).get_modelmeta().custom_metadata_map
    description = json.loads(held["gpusim_rl"])
    model = mujoco.MjModel.from_xml_string(held["mjcf"])
    stance, lying = description["outputs"][0]["safe_pose"], description["standing"]["lying"]
    given = [float(x) for x in sys.argv[3:]]
    link.bind(("127.0.0.1", int(sys.argv[2])))
except Exception as error:  # those of onnxruntime have no common base class
    sys.exit(f"{' '.join(sys.argv)}: {type(error).__name__} {' '.join(str(error).split())}")
model.opt.noslip_iterations = 10  # feet that stand do not creep
data = mujoco.MjData(model)
kp, step, chance = model.actuator_gainprm[:, 0].copy(), model.opt.timestep, random.Random(0)
substeps = round(description["dt"] / step)
seconds, drop, jitter = given + [60.0, 0.01, 0.005][len(given) :]
link.setblocking(False)


def read(name, joints):
    """The numbers of a reading."""
    if joints:
        field = {"joint_pos": "qpos", "joint_vel": "qvel"}[name]
        return [float(getattr(data.joint(joint), field)[0]) for joint in joints]
    return data.sensor(name).data.tolist()


def delayed(queue, packet):
    """Put a packet into a queue by the time of its arrival, or lose it."""
    late = 2 * description["dt"] if chance.random() < 0.005 else 0.0
    if chance.random() >= drop:
        heapq.heappush(queue, (time.monotonic() + late + chance.uniform(0, jitter), packet))


crouch = np.add(stance, 0.6 * np.subtract(lying, stance))
mujoco.mj_resetDataKeyframe(model, data, 0)
mujoco.mj_forward(model, data)
peer, coming, going, heard = None, [], [], None
told = {"lowest_up": 1.0, "packets": 0, "silences": 0, "jumps": [], "gain": 1.0}
print(f"waits at port {link.getsockname()[1]}", flush=True)
begin, count = time.monotonic(), 0
while time.monotonic() - begin < seconds and told["gain"] > 0:
    while True:
        try:
            text, peer = link.recvfrom(65536)
        except OSError:  # none waits
            break
        delayed(coming, text)
    while coming and coming[0][0] <= time.monotonic():
        packet = json.loads(heapq.heappop(coming)[1])
        if "targets" not in packet:
            continue
        pose = read("joint_pos", description["outputs"][0]["joints"])
        if heard is None or time.monotonic() - heard > 0.5:  # a program begins, or begins again
            told["silences"] += 1
            jump = np.abs(np.subtract(packet["targets"], pose)).max()
            told["jumps"].append(round(float(jump), 3))
        heard = time.monotonic()
        told |= {"packets": told["packets"] + 1, "gain": packet["gain"]}
        data.ctrl[:] = packet["targets"]
    if heard is not None and time.monotonic() - heard > 0.2:
        data.ctrl[:] = crouch
    model.actuator_gainprm[:, 0] = told["gain"] * kp
    model.actuator_biasprm[:, 1] = -model.actuator_gainprm[:, 0]
    mujoco.mj_step(model, data)
    count += 1
    told["lowest_up"] = min(told["lowest_up"], float(data.body(1).xmat[8]))
    if count % substeps == 0 and peer:
        values = {x["name"]: x for x in description["inputs"] if x["kind"] == "reading"}
        values = {name: read(name, x.get("joints")) for name, x in values.items()}
        delayed(going, json.dumps({"time": time.monotonic(), "readings": values}).encode())
    while peer and going and going[0][0] <= time.monotonic():
        link.sendto(heapq.heappop(going)[1], peer)
    time.sleep(max(0.0, begin + count * step - time.monotonic()))
told |= {"distance": round(float(np.hypot(*data.qpos[:2])), 2), "height": round(data.qpos[2], 3)}
print(json.dumps(told | {"simulated": round(data.time, 2)}), flush=True)

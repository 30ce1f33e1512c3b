"""An experiment as clients and admins see it."""

from support.serving import COMPLETIONS, saying, serving, until

ADMIN = {"authorization": "Bearer admin"}
ARMS = {
    "first": {"policy": "fcfs"},
    "second": {"policy": "fair-share", "params": {"output_price": 3}},
}
PATH = "/admin/experiment"


def config(**experiment):
    return {"experiment": {"arms": ARMS, "period_s": 3600.0, "washout_s": 0.0} | experiment}


async def test_replies_say_which_arm_was_in_charge():
    async with serving(
        script=saying("hi"), admin_key="admin", config=config(), per_request_metrics=True
    ) as house:
        house.experiment.start()
        await until(lambda: house.experiment.arm is not None)
        arm = house.experiment.arm
        whole = await house.post(COMPLETIONS, {"model": "bytes", "prompt": "x"})
        assert whole.headers["x-ab-arm"] == arm
        assert whole.json()["metrics"]["ab_arm"] == arm
        streamed = await house.post(COMPLETIONS, {"model": "bytes", "prompt": "x", "stream": True})
        assert streamed.headers["x-ab-arm"] == arm
        assert house.experiment.ledger.current.requests == 2
        await until(lambda: house.experiment.ledger.current.whole.over == 2)
        house.experiment.close()


async def test_who_sees_the_admin_page_sees_the_experiment_and_may_end_it():
    async with serving(script=saying("hi"), admin_key="admin", config=config(seed=3)) as house:
        house.experiment.start()
        await until(lambda: house.experiment.arm is not None)
        told = (await house.client.get(PATH, headers=ADMIN)).json()
        assert told["running"]
        assert [arm["arm"] for arm in told["arms"]] == ["first", "second"]
        assert told["arms"][1]["params"] == {"output_price": 3}
        assert (await house.client.get(PATH)).status_code == 401
        assert (await house.client.delete(PATH, headers=ADMIN)).status_code == 200
        await until(lambda: house.experiment.over is not None)
        await until(lambda: house.policies.current.policy == "fcfs")
        told = (await house.client.get(PATH, headers=ADMIN)).json()
        assert not told["running"]
        assert told["over"].startswith("ended by 127.0.0.1, request req-")
        reply = await house.post(COMPLETIONS, {"model": "bytes", "prompt": "x"})
        assert "x-ab-arm" not in reply.headers


async def test_metrics_tell_of_it():
    async with serving(script=saying("hi"), config=config()) as house:
        assert "octavo_experiment_running 1.0" in (await house.client.get("/metrics")).text


async def test_without_one_there_is_nothing():
    async with serving(script=saying("hi"), admin_key="admin") as house:
        reply = await house.client.get(PATH, headers=ADMIN)
        assert reply.status_code == 404
        assert "experiment.arms" in reply.json()["error"]["message"]
        answer = await house.post(COMPLETIONS, {"model": "bytes", "prompt": "x"})
        assert "x-ab-arm" not in answer.headers
        assert "octavo_experiment_running 0.0" in (await house.client.get("/metrics")).text

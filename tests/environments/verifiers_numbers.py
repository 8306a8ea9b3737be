"""An environment of the package `verifiers`, of two classes of its own kind: a number that is to be named."""

import verifiers.v1 as vf


class NumberConfig(vf.TasksetConfig):
    secret: int = 5
    spoils: bool = False


class NumberData(vf.TaskData):
    secret: int = 5


class NumberTask(vf.Task[NumberData, vf.State, vf.TaskConfig]):
    pass


class GameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    echoes: bool = False


class Game(vf.Env[GameConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not (hit := str(task.data.secret) in segment.last_reply) and not segment.terminated:
                answer = f"You said: {segment.last_reply}" if self.config.echoes else "Try again."
                segment = await interaction.turn(answer)
        interaction.trace.record_reward("hit", float(hit), 1.0)


class Numbers(vf.Taskset[NumberTask, NumberConfig]):
    def load(self):
        for number in range(3):
            data = NumberData(prompt=f"Name number {number}.", system_prompt="A game.", secret=self.config.secret)
            yield NumberTask(data, self.config.task)


__all__ = ["Game", "Numbers"]

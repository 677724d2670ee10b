"""What plain decoding answers: what every other text is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from redrafter_mlx.bench.questions import Question
from redrafter_mlx.config import GenerationConfig
from redrafter_mlx.errors import PromptError
from redrafter_mlx.generation import Answer, chat_prompt, generate
from redrafter_mlx.loading.model import LoadedModel
from redrafter_mlx.text import Message, render_chat


@dataclass(slots=True)
class PlainAnswers:
    """What plain decoding answers, asked once a question and turn.

    Attributes:
        model: What answers.
        config: How, plainly.
    """

    model: LoadedModel
    config: GenerationConfig
    _answers: dict[tuple[int, int], Answer] = field(default_factory=dict)

    def prompt(self, question: Question, turn: int) -> list[int]:
        """Return the ids of a turn, with the plain answers to those before.

        Raises:
            PromptError: It does not fit the context, or the template refuses it.
        """
        if turn == 1:
            prompt = chat_prompt(self.model, question.turns[0])
        else:
            messages: list[Message] = []
            for number in range(1, turn):
                answer = self.answer(question, number).text
                messages.append({"role": "user", "content": question.turns[number - 1]})
                messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": question.turns[turn - 1]})
            prompt = render_chat(self.model.tokenizer, messages)
        max_positions = self.model.target.config.max_positions
        if len(prompt) >= max_positions:
            raise PromptError(f"its {len(prompt)} tokens do not fit the context of {max_positions}")
        return prompt

    def first_prompts(self, questions: Sequence[Question], count: int) -> list[list[int]]:
        """Return so many first turns that fit the context, evenly spread where they can be.

        Raises:
            PromptError: None fits.
        """
        prompts: list[list[int]] = []
        step = max(len(questions) // count, 1)
        for place in sorted(range(len(questions)), key=lambda place: (place % step, place)):
            try:
                prompts.append(self.prompt(questions[place], 1))
            except PromptError as error:
                reason = str(error)
            if len(prompts) == count:
                break
        if not prompts:
            raise PromptError(f"No question can be asked: {reason}.")
        return prompts

    def answer(self, question: Question, turn: int) -> Answer:
        """Return the plain answer to a turn; errors as ``prompt``."""
        key = question.question_id, turn
        if key not in self._answers:
            self._answers[key] = generate(self.model, self.prompt(question, turn), self.config)
        return self._answers[key]

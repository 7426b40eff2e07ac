"""Tasks that show images: which models take them."""

from __future__ import annotations

from jobs.errors import TaskError
from jobs.tasks.spec import Task


def check_images(task: Task, model: str, max_images: int | None) -> None:
    """Raises `TaskError` where ``model`` does not take the task's images. ``max_images``: of one prompt; None where nobody asked it."""
    wanted = len(task.images)
    if not wanted or max_images is None or wanted <= max_images:
        return
    if max_images == 0:
        raise TaskError(
            f"{model} takes no images, so task {task.name} cannot show it column {task.images[0]}; serve a vision-language model, "
            "or leave --image out"
        )
    raise TaskError(
        f"{model} takes {max_images} images in one prompt, and task {task.name} shows {wanted}; name fewer columns with --image, "
        "or raise engine.limit_mm_per_prompt in the server's config"
    )
